package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/testkit"
)

// rolesRounds is how often each question is asked of each platform.
const rolesRounds = 500

// rolesQuestions are what is asked of one process and of three, in turn.
var rolesQuestions = []struct {
	name, method, body string
	sandbox            bool // it goes to the sandbox, not to the API
	path               string
}{
	{name: "a request to an awake sandbox", method: http.MethodGet, sandbox: true, path: "/health"},
	{name: "exec true and wait", method: http.MethodPost, sandbox: true, path: "/process", body: `{"command":"true","waitForCompletion":true}`},
	{name: "read a record", method: http.MethodGet, path: "/v0/sandboxes/bench"},
	{name: "change a record", method: http.MethodPut, path: "/v0/sandboxes/bench", body: `{"metadata":{"labels":{"a":"b"}}}`},
}

// inOne is the yardstick of a question.
func inOne(name string) string { return name + ", in one process" }

func rolesCases() (names []string) {
	for _, q := range rolesQuestions {
		names = append(names, inOne(q.name), q.name)
	}
	return names
}

// side is one of the two platforms.
type side struct {
	*testkit.Platform

	url string // of its sandbox
	ask *http.Client
}

// roles asks a platform whose roles are three processes; the yardstick is one process.
func roles(ctx context.Context, dir string, only *regexp.Regexp) (_ table, err error) {
	var all latencies
	open := func(name string, apart bool) (side, error) {
		home := filepath.Join(dir, name)
		if err := os.Mkdir(home, 0o700); err != nil {
			return side{}, err
		}
		p, err := testkit.Start(ctx, testkit.Options{Dir: home, Fast: true, Roles: apart, Args: []string{"--pause-after", "1h", "--log", "warn", "--key-requests", "0"}})
		if err != nil {
			return side{}, err
		}
		s := side{Platform: p, ask: &http.Client{Transport: &http.Transport{}, Timeout: settle}}
		c, err := p.Client()
		if err != nil {
			return s, err
		}
		sb, err := c.Create(ctx, doze.Sandbox{Metadata: doze.Metadata{Name: "bench"}}, false)
		s.url = sb.Metadata.URL
		return s, err
	}
	var sides [2]side
	defer func() {
		for _, s := range sides {
			if s.Platform != nil {
				err = errors.Join(err, s.Close())
			}
		}
	}()
	for i, name := range []string{"one", "three"} {
		if sides[i], err = open(name, i == 1); err != nil {
			return all, err
		}
	}
	for _, q := range rolesQuestions {
		own := &series{name: inOne(q.name)}
		s := &series{name: q.name, against: own}
		if !only.MatchString(s.name) {
			continue
		}
		all = append(all, own, s)
		for range times(rolesRounds) { // in turn: what the machine does besides hits both
			for i, of := range []*series{own, s} {
				base := sides[i].Address
				if q.sandbox {
					base = sides[i].url
				}
				took, err := answer(ctx, sides[i].ask, q.method, base+q.path, sides[i].Key, q.body)
				if err != nil {
					return all, fmt.Errorf("%s: %w", of.name, err)
				}
				of.add(took)
			}
			time.Sleep(time.Millisecond)
		}
	}
	return all, nil
}
