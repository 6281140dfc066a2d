// Scores two rows over gRPC. docs/clients.md says how the package inference is made from Triton's proto.
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"log"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"emberline.example/inference"
)

func main() {
	url := flag.String("url", "127.0.0.1:8001", "the server's gRPC address")
	flag.Parse()

	// One connection for the life of the process; any number of goroutines may call over it.
	connection, err := grpc.Dial(*url, grpc.WithInsecure())
	if err != nil {
		log.Fatal(err)
	}
	defer connection.Close()
	client := inference.NewGRPCInferenceServiceClient(connection)

	words := []int64{1, 2, 99, 4, 5, 6}
	dense := []float32{0.5, 0.25, 0.5, 0.25}
	request := &inference.ModelInferRequest{
		ModelName: "tiny",
		Id:        "go-1",
		Inputs: []*inference.ModelInferRequest_InferInputTensor{
			{Name: "words", Datatype: "INT64", Shape: []int64{2, 3}},
			{Name: "dense", Datatype: "FP32", Shape: []int64{2, 2}},
		},
		RawInputContents: [][]byte{littleEndian(words), littleEndian(dense)},
	}

	// The deadline travels with the request: what has waited longer is not computed.
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	response, err := client.ModelInfer(ctx, request)
	if err != nil {
		log.Fatalf("%s: %s", status.Code(err), status.Convert(err).Message())
	}

	scores := make([]float32, response.Outputs[0].Shape[0])
	if err := binary.Read(bytes.NewReader(response.RawOutputContents[0]), binary.LittleEndian, scores); err != nil {
		log.Fatal(err)
	}
	for _, score := range scores {
		fmt.Println(score)
	}
	log.Printf("request %s, snapshot %s", response.Id, response.Parameters["snapshot"].GetStringParam())
}

// littleEndian returns the bytes of a tensor, row after row.
func littleEndian(values interface{}) []byte {
	var buffer bytes.Buffer
	if err := binary.Write(&buffer, binary.LittleEndian, values); err != nil {
		log.Fatal(err)
	}
	return buffer.Bytes()
}
