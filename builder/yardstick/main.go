// Command yardstick builds a directory with BuildKit and runc on this host, and prints the
// times as JSON. The benchmark of builds compares them with those of a builder machine. It
// is not shipped, and its steps have the rights and the network of the host's runc.
package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/dozehq/doze/internal/buildapi"

	"github.com/dozehq/doze/builder/engine"
)

// id is that of the one build of a process.
const id = "yardstick"

// times are what one build took, in milliseconds.
type times struct {
	Open  float64 `json:"openMs"`  // to open the cache
	Load  float64 `json:"loadMs"`  // to load the images that the cache does not have
	Build float64 `json:"buildMs"` // to build, and to have the image in the cache
	Steps []step  `json:"steps"`   // in the order of their ends
}

// step is an instruction that has ended.
type step struct {
	Name  string  `json:"name"`
	State string  `json:"state"` // done or cached
	Took  float64 `json:"tookMs"`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "yardstick:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	cache := flag.String("cache", "", "`directory` of the cache; made if there is none")
	noCache := flag.Bool("no-cache", false, "run every step")
	images, secrets := map[string]string{}, map[string]string{}
	flag.Func("image", "an image that the Dockerfile names, as `NAME=FILE` with an OCI layout; the same FILE has the same bytes for the life of the cache", pair(images))
	flag.Func("secret", "a secret of the build, as `ID=FILE`", pair(secrets))
	flag.Parse()
	if *cache == "" || flag.NArg() != 1 {
		return errors.New("usage: yardstick -cache DIR [-no-cache] [-image NAME=FILE]… [-secret ID=FILE]… DIR")
	}
	runc, err := exec.LookPath("runc")
	if err != nil {
		return errors.New("install runc")
	}
	var out times
	begin := time.Now()
	e, err := engine.Open(ctx, engine.Config{Dir: *cache, Runtime: runc, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	out.Open = since(begin)
	order := engine.Order{Dir: flag.Arg(0), Build: buildapi.Build{ID: id, Context: id, NoCache: *noCache, Names: map[string]string{}, Secrets: map[string]string{}}}
	for name, file := range secrets {
		raw, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		order.Secrets[name] = string(raw)
	}
	begin = time.Now()
	for name, file := range images {
		if order.Names[name], err = put(ctx, e, file); err != nil {
			return fmt.Errorf("load the image %s: %w", name, err)
		}
	}
	out.Load = since(begin)
	begin = time.Now()
	_, failure := e.Build(ctx, order, func(ev buildapi.Event) {
		if ev.Step > 0 && (ev.State == buildapi.StateDone || ev.State == buildapi.StateCached) {
			out.Steps = append(out.Steps, step{ev.Name, ev.State, float64(ev.Took.Microseconds()) / 1000})
		}
	})
	out.Build = since(begin)
	if failure != nil {
		return fmt.Errorf("%s\n%s", failure.Message, strings.Join(failure.Tail, "\n"))
	}
	// The layers stay in the cache of steps.
	return errors.Join(e.DropResult(ctx, id), json.NewEncoder(os.Stdout).Encode(out))
}

// pair returns a flag's parser of KEY=VALUE.
func pair(into map[string]string) func(string) error {
	return func(text string) error {
		key, value, ok := strings.Cut(text, "=")
		if !ok || key == "" || value == "" {
			return errors.New("it must be KEY=FILE")
		}
		into[key] = value
		return nil
	}
}

// put loads an image, unless the cache has it. It returns the digest under which it is there.
func put(ctx context.Context, e *engine.Engine, file string) (digest string, err error) {
	sum := sha256.Sum256([]byte(file))
	digest = "sha256:" + hex.EncodeToString(sum[:])
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }() // it is only read
	return digest, e.PutImage(ctx, digest, f)
}

// since is the time since a moment, in milliseconds.
func since(begin time.Time) float64 { return float64(time.Since(begin).Microseconds()) / 1000 }
