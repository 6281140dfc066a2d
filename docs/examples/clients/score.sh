#!/usr/bin/env bash
# Asks a server for scores with curl: ./score.sh http://127.0.0.1:8000
set -euo pipefail
url=${1:-http://127.0.0.1:8000}

# Is it ready, what is there, and what does a model take?
curl --silent --fail "$url/v2/health/ready"
curl --silent --fail -X POST "$url/v2/repository/index"
echo
curl --silent --fail "$url/v2/models/tiny"
echo

# KServe v1: an object a row, a number a row comes back.
curl --silent --fail "$url/v1/models/tiny:predict" -d '{
  "instances": [
    {"words": [1, 2, 99], "dense": [0.5, 0.25]},
    {"words": [4, 5, 6], "dense": [0.5, 0.25]}
  ]
}'
echo

# KServe v2: a tensor an input, with its name, type and shape; the batch comes first.
curl --silent --fail "$url/v2/models/tiny/infer" -d '{
  "id": "curl-1",
  "inputs": [
    {"name": "words", "datatype": "INT64", "shape": [2, 3], "data": [[1, 2, 99], [4, 5, 6]]},
    {"name": "dense", "datatype": "FP32", "shape": [2, 2], "data": [[0.5, 0.25], [0.5, 0.25]]}
  ]
}'
echo
