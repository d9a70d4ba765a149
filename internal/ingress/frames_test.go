package ingress_test

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/httpx"
	"github.com/dozehq/doze/internal/ingress"
)

// TestResetStreams: streams that are reset at once are read slowly, and another
// source waits for none of them.
func TestResetStreams(t *testing.T) {
	const (
		length  = 3 * time.Second
		buffers = 64 << 10 // of the sockets
		most    = 8 << 20  // the bucket, what comes into it meanwhile, and what the kernel keeps
	)
	s := start(t, ingress.Limits{}, api, false)
	var head bytes.Buffer
	enc := hpack.NewEncoder(&head)
	for _, f := range [][2]string{{":method", "GET"}, {":scheme", "http"}, {":authority", "x"}, {":path", "/"}} {
		if err := enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}); err != nil {
			t.Fatal(err)
		}
	}
	// reset does so on one connection until the other side ends it.
	reset := func(until time.Time) (sent int) {
		c := s.dial(t, "127.0.0.2")
		defer c.Close()
		if err := c.(*net.TCPConn).SetWriteBuffer(buffers); err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(until)
		go func() { _, _ = io.Copy(io.Discard, c) }() // ends with the connection
		var pairs bytes.Buffer
		pairs.WriteString(http2.ClientPreface)
		framer := http2.NewFramer(&pairs, nil)
		_ = framer.WriteSettings() // a buffer takes all
		for id := uint32(1); ; {
			for range 100 {
				_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: head.Bytes(), EndStream: true, EndHeaders: true})
				_ = framer.WriteRSTStream(id, http2.ErrCodeCancel)
				id += 2
			}
			n, err := c.Write(pairs.Bytes())
			pairs.Reset()
			if sent += n; err != nil {
				return sent
			}
		}
	}
	sent := 0
	for until := time.Now().Add(length); time.Now().Before(until); {
		sent += reset(until)
	}
	if sent > most {
		t.Errorf("%d bytes of streams that were reset were read in %v, want at most %d", sent, length, most)
	}
}

// TestUploadsOverFrames: bodies over HTTP/2 come as fast as their handler reads
// them, and those that nobody reads cost their client nothing.
func TestUploadsOverFrames(t *testing.T) {
	const (
		size    = 64 << 20
		refused = 16
		soon    = 20 * time.Second // at the rate of other frames it would take minutes
	)
	for name, secure := range map[string]bool{"plain": false, "TLS": true} {
		t.Run(name, func(t *testing.T) {
			s := start(t, ingress.Limits{}, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/nowhere" {
					httpx.WriteError(w, r, doze.Errorf(doze.NotFound, "there is no such file"))
					return
				}
				api(w, r)
			}, secure)
			client, base := s.by(secure, true)
			client.Timeout = soon
			send := func(path string) int {
				r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, base+path, io.LimitReader(zeros{}, size))
				if err != nil {
					t.Fatal(err)
				}
				r.Header.Set("Authorization", "key")
				resp, err := client.Do(r)
				if err != nil {
					t.Fatal(err)
				}
				_, _ = io.Copy(io.Discard, resp.Body) // the status is what counts
				_ = resp.Body.Close()
				return resp.StatusCode
			}
			began := time.Now()
			for range refused {
				if got := send("/nowhere"); got != http.StatusNotFound {
					t.Fatal(got)
				}
			}
			if got := send("/"); got != http.StatusOK {
				t.Error(got)
			}
			t.Log(time.Since(began))
		})
	}
}

// zeros is a body.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// TestManyConnections: the clients behind an address make many connections of HTTP/2 at a time,
// as they do when the edge that they used has ended. None of them waits.
func TestManyConnections(t *testing.T) {
	const (
		many = 200
		soon = 1500 * time.Millisecond // the server ends a connection whose settings take 2 s
	)
	s := start(t, ingress.Limits{}, api, false)
	var tasks sync.WaitGroup
	for range many {
		client, base := (&server{Ingress: s.Ingress, at: s.at, client: &http.Client{}}).by(false, true)
		client.Timeout = soon
		t.Cleanup(client.CloseIdleConnections)
		tasks.Go(func() {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, base+"/", strings.NewReader("hello"))
			if err != nil {
				t.Error(err)
				return
			}
			r.Header.Set("Authorization", "key")
			resp, err := client.Do(r)
			if err != nil {
				t.Error(err)
				return
			}
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				t.Error(resp.Status)
			}
		})
	}
	tasks.Wait()
}
