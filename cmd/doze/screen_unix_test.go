//go:build unix

package main

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/coder/websocket"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
)

func TestAttach(t *testing.T) {
	resized := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer c.CloseNow()
		for {
			_, b, err := c.Read(r.Context())
			if err != nil {
				return
			}
			if strings.Contains(string(b), "resize") {
				close(resized)
				c.Write(r.Context(), websocket.MessageText, []byte(`{"type":"output","data":"bye"}`))
				c.Close(websocket.StatusNormalClosure, "")
				return
			}
			c.Write(r.Context(), websocket.MessageText, []byte(`{"type":"output","data":"$ "}`))
		}
	}))
	defer srv.Close()
	c, err := client.New(client.Config{Address: srv.URL, Key: "k"})
	if err != nil {
		t.Fatal(err)
	}
	agent, err := c.Agent(doze.Sandbox{Metadata: doze.Metadata{URL: srv.URL}})
	if err != nil {
		t.Fatal(err)
	}
	term, err := agent.Terminal(t.Context(), client.Screen{})
	if err != nil {
		t.Fatal(err)
	}
	defer term.Close()
	looks := 0
	screen := func() (int, int) {
		looks++
		if looks == 1 {
			go syscall.Kill(os.Getpid(), syscall.SIGWINCH)
		}
		return 80 + looks, 24
	}
	var out strings.Builder
	if err := (view{strings.NewReader("ls\n"), &out, screen}).attach(t.Context(), term); err != nil {
		t.Fatal(err)
	}
	<-resized
	if out.String() != "$ bye" && out.String() != "bye" {
		t.Errorf("saw %q", out.String())
	}
	if err := (view{nil, &out, screen}).attach(t.Context(), term); err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("a closed terminal: %v", err)
	}
}
