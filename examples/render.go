// Runs the jobs of produce.py, one HTML file per job: go run render.go [folder]
//
// Any number of these may run at once; each job goes to one of them. Needs Go 1.25 or later, in a folder of its own:
// go mod init render && go get github.com/nats-io/nats.go
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
)

const slots = 4 // jobs at once: Longshore sends this process no more

var errMalformed = errors.New("a report has a number and a title")

type report struct {
	Number *int
	Title  *string
}

type rendered struct {
	File  string `json:"file"`
	Bytes int    `json:"bytes"`
}

func render(folder string, payload []byte) (rendered, error) {
	var report report
	if err := json.Unmarshal(payload, &report); err != nil {
		return rendered{}, fmt.Errorf("%w: %w", errMalformed, err)
	}
	if report.Number == nil || report.Title == nil {
		return rendered{}, errMalformed
	}
	page := "<!doctype html>\n<title>Report</title>\n<h1>" + html.EscapeString(*report.Title) + "</h1>\n"
	file := filepath.Join(folder, strconv.Itoa(*report.Number)+".html")
	return rendered{file, len(page)}, os.WriteFile(file, []byte(page), 0o644)
}

func handle(job micro.Request, folder string) {
	defer func() {
		if panicked := recover(); panicked != nil { // it would end the process, with all its jobs
			job.Error("500", fmt.Sprint("panic: ", panicked), nil)
		}
	}()
	result, err := render(folder, job.Data())
	switch {
	case errors.Is(err, errMalformed): // 4xx: no other attempt would help
		job.Error("422", err.Error(), nil)
	case err != nil: // tried again later; without an answer only after the time limit
		job.Error("500", err.Error(), nil)
	default:
		job.RespondJSON(result) // a plain reply is success
	}
}

func main() {
	folder := "reports"
	if len(os.Args) > 1 {
		folder = os.Args[1]
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		log.Fatal(err)
	}
	closed := make(chan struct{})
	client, err := nats.Connect(cmp.Or(os.Getenv("NATS_URL"), nats.DefaultURL),
		nats.MaxReconnects(-1), // by default it gives up after two minutes
		nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
	if err != nil {
		log.Fatal(err)
	}

	ended, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var running sync.WaitGroup
	begin := func(job micro.Request) {
		if ended.Err() != nil {
			handle(job, folder) // one of the last: Drain waits for it
			return
		}
		running.Go(func() { handle(job, folder) }) // nats.go waits for this function before it takes the next message
	}
	service, err := micro.AddService(client, micro.Config{
		Name:     "render",
		Version:  "1.0.0",
		Metadata: map[string]string{"longshore.slots": strconv.Itoa(slots)},
	})
	if err != nil {
		log.Fatal(err)
	}
	subject := micro.WithEndpointSubject("longshore.work.*.report.render")
	if err := service.AddEndpoint("render", micro.HandlerFunc(begin), subject); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("rendering into %s/; Ctrl-C ends\n", folder)

	<-ended.Done()
	service.Stop() // takes no more jobs
	client.Flush()
	running.Wait()
	client.Drain()
	<-closed
}
