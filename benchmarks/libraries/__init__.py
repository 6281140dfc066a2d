"""Models of other libraries, trained by the libraries' own code, published, and compared with torch's answers."""
