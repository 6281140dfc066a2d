// Scores two rows by KServe v2 in JSON, with Go's own library alone.
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"net/http"
	"time"
)

type tensor struct {
	Name     string      `json:"name"`
	Datatype string      `json:"datatype"`
	Shape    []int       `json:"shape"`
	Data     interface{} `json:"data"`
}

type inferRequest struct {
	Id     string   `json:"id"`
	Inputs []tensor `json:"inputs"`
}

type inferResponse struct {
	Id      string `json:"id"`
	Outputs []struct {
		Name string    `json:"name"`
		Data []float32 `json:"data"`
	} `json:"outputs"`
	Parameters struct {
		Snapshot string `json:"snapshot"`
	} `json:"parameters"`
	Error string `json:"error"`
}

func main() {
	url := flag.String("url", "http://127.0.0.1:8000", "the server's HTTP address")
	flag.Parse()

	body, err := json.Marshal(inferRequest{"go-1", []tensor{
		{"words", "INT64", []int{2, 3}, [][]int64{{1, 2, 99}, {4, 5, 6}}},
		{"dense", "FP32", []int{2, 2}, [][]float32{{0.5, 0.25}, {0.5, 0.25}}},
	}})
	if err != nil {
		log.Fatal(err)
	}

	// One client for the life of the process: it keeps connections open.
	client := &http.Client{Timeout: 2 * time.Second}
	answer, err := client.Post(*url+"/v2/models/tiny/infer", "application/json", bytes.NewReader(body))
	if err != nil {
		log.Fatal(err)
	}
	defer answer.Body.Close()
	var response inferResponse
	if err := json.NewDecoder(answer.Body).Decode(&response); err != nil {
		log.Fatal(err)
	}
	if answer.StatusCode != http.StatusOK {
		log.Fatalf("%d: %s", answer.StatusCode, response.Error)
	}

	for _, score := range response.Outputs[0].Data {
		fmt.Println(score)
	}
	log.Printf("request %s, snapshot %s", response.Id, response.Parameters.Snapshot)
}
