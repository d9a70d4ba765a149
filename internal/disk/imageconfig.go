package disk

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/dozehq/doze"
)

const (
	// portsMax bounds the ports that an image names. Those of a range count one by one.
	portsMax = 1000
	// retriesMax bounds what a health check of an image may say.
	retriesMax = 1000
	// healthTimeMax bounds each of its times.
	healthTimeMax = 24 * time.Hour
)

// config is what the maker of an image says about the process in it. digest,
// if set, is its identity; otherwise its bytes are.
type config struct {
	doze.ImageConfig

	digest string
	bytes  int64 // of the files, or 0 for one of our recipes, of which there are a few
}

// configOf reads the configuration of an image of a registry, of a layout or of an
// archive. Preconditions: checkConfig has no error.
func configOf(file v1.ConfigFile) config {
	c := file.Config
	ports, _ := portsOf(c.ExposedPorts) // checkConfig has seen them
	return config{ImageConfig: doze.ImageConfig{
		Env: c.Env, User: c.User, WorkDir: c.WorkingDir, Entrypoint: c.Entrypoint, Cmd: c.Cmd,
		Ports: ports, Labels: c.Labels, StopSignal: c.StopSignal, Health: healthOf(c.Healthcheck),
	}}
}

// readRaw adds what [v1.ConfigFile] leaves out of a configuration. raw is the file.
func (c *config) readRaw(raw []byte) {
	var file struct {
		Config struct {
			Healthcheck struct{ StartInterval time.Duration }
		} `json:"config"`
	}
	if err := json.Unmarshal(raw, &file); err != nil || c.Health == nil {
		return // it was read before, and the number has another type
	}
	c.Health.StartInterval = seconds(file.Config.Healthcheck.StartInterval)
}

// checkConfig refuses an image whose configuration nobody can obey. ref names it.
func checkConfig(ref string, file *v1.ConfigFile) error {
	c := &file.Config
	about := len(c.User) + len(c.WorkingDir) + len(c.StopSignal)
	for _, v := range c.Env {
		about += len(v)
		if strings.ContainsRune(v, 0) || strings.IndexByte(v, '=') < 1 {
			return invalid(ref, "the environment of %s has %.40q, which is no variable: write NAME=value", ref, v)
		}
	}
	for name, v := range map[string]string{"user": c.User, "working directory": c.WorkingDir} {
		if strings.ContainsRune(v, 0) {
			return invalid(ref, "the %s of %s has a NUL byte", name, ref)
		}
	}
	argv := slices.Concat(c.Entrypoint, c.Cmd)
	if c.Healthcheck != nil {
		argv = append(argv, c.Healthcheck.Test...)
	}
	for _, v := range argv {
		about += len(v)
		if strings.ContainsRune(v, 0) {
			return invalid(ref, "the command of %s has %.40q: no program can be given a NUL byte", ref, v)
		}
	}
	for name, value := range c.Labels {
		about += len(name) + len(value)
	}
	for port := range c.ExposedPorts {
		about += len(port)
	}
	if about > recordBytesMax/2 { // the rest is for references, and for how JSON writes all this
		return invalid(ref, "the environment, command, labels and other words of %s are longer than %d bytes together", ref, recordBytesMax/2)
	}
	if _, err := portsOf(c.ExposedPorts); err != nil {
		return invalid(ref, "%s exposes %v", ref, err)
	}
	if _, ok := doze.ParseSignal(c.StopSignal); !ok && c.StopSignal != "" {
		return invalid(ref, "the stop signal of %s is %.40q, which is none: write its name, as in SIGINT, or its number, 1 to %d", ref, c.StopSignal, doze.SignalMax)
	}
	return checkHealth(ref, c.Healthcheck)
}

// portsOf returns the ports that an image exposes, each once, by number. What has no
// protocol is TCP, and a range is each of its ports.
func portsOf(exposed map[string]struct{}) ([]string, error) {
	type port struct {
		number   int
		protocol string
	}
	errMany := fmt.Errorf("more than %d ports, which is the limit", portsMax)
	if len(exposed) > portsMax {
		return nil, errMany
	}
	seen := map[port]bool{}
	for text := range exposed {
		numbers, protocol, _ := strings.Cut(strings.ToLower(text), "/")
		protocol = cmp.Or(protocol, "tcp")
		first, last, ranged := strings.Cut(numbers, "-")
		if !ranged {
			last = first
		}
		from, err1 := strconv.ParseUint(first, 10, 16)
		to, err2 := strconv.ParseUint(last, 10, 16)
		if err := cmp.Or(err1, err2); err != nil || from < 1 || to < from || !slices.Contains([]string{"tcp", "udp", "sctp"}, protocol) {
			return nil, fmt.Errorf("%.40q, which is no port: write a number of 1 to 65535, as in 80 or 80/tcp", text)
		}
		for n := from; n <= to; n++ {
			if seen[port{int(n), protocol}] = true; len(seen) > portsMax {
				return nil, errMany
			}
		}
	}
	var all []port
	for p := range seen {
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b port) int {
		return cmp.Or(cmp.Compare(a.number, b.number), cmp.Compare(a.protocol, b.protocol))
	})
	var texts []string
	for _, p := range all {
		texts = append(texts, strconv.Itoa(p.number)+"/"+p.protocol)
	}
	return texts, nil
}

// The first words of a health check.
const (
	testNone  = "NONE"
	testCmd   = "CMD"
	testShell = "CMD-SHELL"
)

// checkHealth refuses a health check that cannot be run.
func checkHealth(ref string, h *v1.HealthConfig) error {
	if h == nil || len(h.Test) == 0 || h.Test[0] == testNone {
		return nil
	}
	if h.Test[0] != testCmd && h.Test[0] != testShell || len(h.Test) < 2 || h.Test[0] == testShell && len(h.Test) > 2 {
		return invalid(ref, "the health check of %s is %.60q: it must be CMD and a program, CMD-SHELL and a line, or NONE", ref, h.Test)
	}
	for _, t := range []time.Duration{h.Interval, h.Timeout, h.StartPeriod} {
		if t < 0 || t > healthTimeMax {
			return invalid(ref, "the health check of %s has a time of %v; it must be 0 to %v", ref, t, healthTimeMax)
		}
	}
	if h.Retries < 0 || h.Retries > retriesMax {
		return invalid(ref, "the health check of %s has %d retries; it must have 0 to %d", ref, h.Retries, retriesMax)
	}
	return nil
}

// healthOf is the health check of an image, or nil if it has none. Preconditions:
// checkHealth has no error.
func healthOf(h *v1.HealthConfig) *doze.ImageHealth {
	if h == nil || len(h.Test) == 0 || h.Test[0] == testNone {
		return nil
	}
	return &doze.ImageHealth{
		Test: h.Test, Interval: seconds(h.Interval), Timeout: seconds(h.Timeout), StartPeriod: seconds(h.StartPeriod), Retries: h.Retries,
	}
}

// seconds is how the API says a time. One out of bounds is none.
func seconds(d time.Duration) float64 {
	if d < 0 || d > healthTimeMax {
		return 0
	}
	return d.Seconds()
}
