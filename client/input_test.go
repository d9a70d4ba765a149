package client_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/dozehq/doze/client"
)

// TestRunWritesInput runs commands that read their input in ways of their own.
func TestRunWritesInput(t *testing.T) {
	long := strings.Repeat("0123456789", 60_000) // more than one request
	cases := map[string]struct {
		in   io.Reader
		take []int // bytes that each request gets in; all, when there are no more
		last int   // status of the request that gets less; 503 is: try again
		want string
		err  string
	}{
		"nothing":          {strings.NewReader(""), nil, 0, "", ""},
		"some":             {strings.NewReader("some"), nil, 0, "some", ""},
		"much":             {strings.NewReader(long), nil, 0, long, ""},
		"in small reads":   {iotest.OneByteReader(strings.NewReader("slow")), nil, 0, "slow", ""},
		"a slow reader":    {strings.NewReader(long), []int{0, 3, 0, 70_000, 0}, 503, long, ""},
		"it wants no more": {strings.NewReader("some"), []int{3}, 409, "som", ""},
		"it is over":       {strings.NewReader("some"), []int{0}, 404, "", ""},
		"it is not told":   {strings.NewReader("some"), []int{-1}, 503, "", "standard input: the sandbox says 503"},
		"a bug":            {strings.NewReader("some"), []int{1}, 500, "s", "standard input: the sandbox says 500"},
		"a broken file":    {io.MultiReader(strings.NewReader("so"), iotest.ErrReader(errors.New("disk on fire"))), nil, 0, "so", "standard input: disk on fire"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got strings.Builder
			over := make(chan struct{}) // the command has heard enough
			take := c.take
			_, agent := served(t, func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				w.Header().Set("Content-Type", "application/x-ndjson")
				switch path := strings.TrimPrefix(r.URL.Path, "/run/acme/sandboxes/web"); r.Method + " " + path {
				case "POST /process":
					if !strings.Contains(string(body), `"stdin":true`) || !strings.Contains(string(body), `"name":"p"`) {
						t.Errorf("%s", body)
					}
					http.NewResponseController(w).Flush()
					select {
					case <-over:
						io.WriteString(w, `{"type":"result","data":"{}"}`+"\n")
					case <-r.Context().Done():
					}
				case "POST /process/p/stdin":
					if len(take) == 0 {
						got.Write(body)
						io.WriteString(w, `{"message":"ok","path":""}`)
						return
					}
					n := take[0]
					take = take[1:]
					if n >= 0 {
						got.Write(body[:n])
						w.Header().Set("Doze-Unwritten", strconv.Itoa(len(body)-n))
					}
					w.WriteHeader(c.last)
					fmt.Fprintf(w, `{"error":"the sandbox says %d"}`, c.last)
					if c.last == http.StatusConflict || c.last == http.StatusNotFound {
						close(over)
					}
				case "DELETE /process/p/stdin":
					close(over)
					io.WriteString(w, `{"message":"ok","path":""}`)
				default:
					t.Errorf("%s %s", r.Method, path)
				}
			})
			_, err := agent.Run(t.Context(), client.Command{Command: "x", Name: "p", Input: c.in}, func(client.Channel, string) error { return nil })
			bad, isInput := errors.AsType[*client.InputError](err)
			if isInput != (c.err != "") || isInput && bad.Error() != c.err || !isInput && err != nil {
				t.Errorf("error %v", err)
			}
			if got.String() != c.want {
				t.Errorf("%d bytes reached it, want %d", got.Len(), len(c.want))
			}
		})
	}
}
