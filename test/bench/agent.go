package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
	"github.com/dozehq/doze/internal/agent"
	"github.com/dozehq/doze/internal/testkit"
)

const (
	agentRounds = 500
	agentFile   = 1 << 10 // bytes of a file that is written
	// agentRest is more than the agent waits before it gives memory back.
	agentRest = 4 * time.Second
)

// agentExecs are how many processes have ended when the agent's memory is looked
// at again: it keeps nothing that grows with them.
var agentExecs = []int{2000, 6000}

// calls are what is asked of an agent, one after the other over one connection.
var calls = []struct{ name, method, path, body string }{
	{"health", http.MethodGet, "/health", ""},
	{"write 1 KB", http.MethodPut, "/filesystem/bench", `{"content":"` + strings.Repeat("x", agentFile) + `"}`},
	{"exec true", http.MethodPost, "/process", `{"command":"true"}`},
	{"exec true and wait", http.MethodPost, "/process", `{"command":"true","waitForCompletion":true}`},
	{"exec with a shell and wait", http.MethodPost, "/process", `{"command":"true && true","waitForCompletion":true}`},
}

// alone is the yardstick of calls.
func alone(name string) string { return name + ", the agent alone" }

// agentCases names all rows of the benchmark.
func agentCases() (names []string) {
	for _, c := range calls {
		names = append(names, alone(c.name), c.name)
	}
	for _, l := range bulk {
		names = append(names, l.proxied(), l.name)
		if l.plain != nil {
			names = append(names, l.plainly())
		}
	}
	return names
}

// agentCalls asks the agent of a sandbox, through the edge; the yardstick is the
// same agent in this process.
func agentCalls(ctx context.Context, dir string, only *regexp.Regexp) (_ table, err error) {
	var all latencies
	p, err := testkit.Start(ctx, testkit.Options{Dir: dir, Fast: true, Args: []string{"--pause-after", "1h", "--log", "warn"}, Account: true})
	if err != nil {
		return all, err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	c, err := p.Client()
	if err != nil {
		return all, err
	}
	sb, err := c.Create(ctx, doze.Sandbox{Metadata: doze.Metadata{Name: "agent"}}, false)
	if err != nil {
		return all, err
	}
	agent, err := c.Agent(sb)
	if err != nil {
		return all, err
	}
	here, stop, err := ownAgent(ctx, dir)
	if err != nil {
		return all, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	for _, call := range calls {
		own := &series{name: alone(call.name)}
		s := &series{name: call.name, against: own}
		if !only.MatchString(s.name) {
			continue
		}
		all = append(all, own, s)
		for _, side := range []struct {
			*series
			base, key string
		}{{own, here, ""}, {s, sb.Metadata.URL, p.Key}} {
			ask := &http.Client{Transport: &http.Transport{}, Timeout: settle}
			for range times(agentRounds) {
				took, err := answer(ctx, ask, call.method, side.base+call.path, side.key, call.body)
				if err != nil {
					return all, fmt.Errorf("%s: %w", side.name, err)
				}
				side.add(took)
			}
		}
	}
	loads, err := agentLoads(ctx, p, here, dir, only)
	if all = append(all, loads...); err != nil || !only.MatchString(agentMemory) || *most > 0 {
		return all, err
	}
	return all, growth(ctx, agent)
}

// agentMemory is the name of what growth prints.
const agentMemory = "memory"

// growth prints what the agent takes, and what it takes after many processes.
func growth(ctx context.Context, agent *client.Agent) error {
	before, err := resident(ctx, agent)
	if err != nil {
		return err
	}
	fmt.Printf("the agent takes %s\n", before)
	done := 0
	for _, most := range agentExecs {
		for ; done < most; done++ {
			if _, err := agent.Start(ctx, client.Command{Command: "true", Wait: true}); err != nil {
				return err
			}
		}
		after, err := resident(ctx, agent)
		if err != nil {
			return err
		}
		fmt.Printf("after %d processes it takes %s\n", done, after)
	}
	return nil
}

// ownAgent runs an agent in this process and returns its address.
func ownAgent(ctx context.Context, dir string) (url string, stop func() error, err error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	slog.SetDefault(slog.New(slog.DiscardHandler)) // nobody reads that of a sandbox either
	a := agent.New(agent.Config{Env: append(os.Environ(), "WORKDIR="+dir), LogDir: filepath.Join(dir, "logs"), UploadDir: filepath.Join(dir, "uploads")})
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx, l) }()
	return "http://" + l.Addr().String(), func() error {
		cancel()
		return <-ended
	}, nil
}

// footprint is the memory of an agent, in kB.
type footprint struct {
	written int // pages that it wrote to: what one more sandbox costs
	program int // its binary, whose pages all sandboxes share
	counted int // what the engine says: in steps of 2 MiB, and the binary as a whole
}

func (f footprint) String() string {
	return fmt.Sprintf("%d kB of its own and at most %d kB of its program, %d kB as the engine counts", f.written, f.program, f.counted)
}

// resident returns the memory that the agent of a sandbox has. It is read
// through the agent itself: nothing else runs.
func resident(ctx context.Context, agent *client.Agent) (f footprint, err error) {
	time.Sleep(agentRest)
	counted, err := fields(ctx, agent, "/proc/1/status")
	if err != nil {
		return f, err
	}
	all, err := fields(ctx, agent, "/proc/meminfo")
	if err != nil {
		return f, err
	}
	info, err := os.Stat(filepath.Join(testkit.Root(), "bin", "doze-agent"))
	if err != nil {
		return f, err
	}
	// The engine counts files among the pages without a file, too.
	return footprint{written: all["AnonPages"] - all["Shmem"], program: int(info.Size() >> 10), counted: counted["VmRSS"]}, nil
}

// fields reads a file of lines such as "VmRSS:  1 kB".
func fields(ctx context.Context, agent *client.Agent, name string) (map[string]int, error) {
	file, err := agent.ReadFile(ctx, name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	raw, err := io.ReadAll(file)
	all := map[string]int{}
	for line := range strings.Lines(string(raw)) {
		key, value, _ := strings.Cut(line, ":")
		if n, e := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(value), " kB")); e == nil {
			all[key] = n
		}
	}
	return all, err
}

// answer times a request until the whole answer is there.
func answer(ctx context.Context, c *http.Client, method, url, key, body string) (time.Duration, error) {
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	if key != "" {
		r.Header.Set("Authorization", "Bearer "+key)
	}
	r.Header.Set("Content-Type", "application/json")
	start := time.Now()
	resp, err := c.Do(r)
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	said, err := io.ReadAll(resp.Body)
	took := time.Since(start)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, said)
	}
	return took, err
}
