"""Load tests over the wire: locust users for HTTP binary, HTTP JSON and gRPC, with requests drawn from Parquet data.

With the web page:  locust -f loadtest/locustfile.py --host http://127.0.0.1:8000 --model movielens --data test.parquet
Headless, one kind of user after the other, with a table:  python -m loadtest --help
"""
