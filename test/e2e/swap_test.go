package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dozehq/doze/internal/testkit"
)

// TestSwap walks a sandbox with 200 MB of touched, random memory into swap and
// back, and ends what it depends on meanwhile.
func TestSwap(t *testing.T) {
	t.Parallel()
	for kind, size := range map[string]string{"plain": "1G", "zram": "512M"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			swapWalk(t, kind, size)
		})
	}
}

// swapWalk is TestSwap with one kind of swap.
func swapWalk(t *testing.T, kind, size string) {
	t.Helper()
	p, c := start(t, "--swap", kind+":"+size, "--pause-after", "500ms", "--save-after", "100ms", "--swap-after", "200ms", "--disk-after", "1h")
	if printed := p.Printed(); strings.Contains(printed, "swap could not be had") || !strings.Contains(printed, `"kind":"`+kind+`"`) {
		t.Skip("SKIPPED: this host lets us make no swap:", p.Tail())
	}
	sb, agent := create(t, c, named("memory", 1024))
	url := hold(t, p, sb, agent, 200, 2)
	before := sum(t, p, url+"/bytes")
	for name, end := range map[string]func() error{
		"nothing happens": func() error { return nil },
		"dozed is killed": func() error {
			if err := p.Kill(); err != nil {
				return err
			}
			return p.Restart(t.Context())
		},
		"the launcher is killed": func() error {
			pid, err := p.Launcher()
			if err != nil {
				return err
			}
			if err := testkit.Shoot(t.Context(), pid); err != nil {
				return err
			}
			until(t, "its successor has the sandbox", func() bool {
				tier, err := p.Tier(t.Context())
				return err == nil && tier == "swapped"
			})
			return nil
		},
		"the engine is killed": func() error {
			pid, err := p.Engine("memory")
			if err != nil {
				return err
			}
			if err := testkit.Shoot(t.Context(), pid); err != nil {
				return err
			}
			await(t, p, "disk") // nothing was told, and nothing is lost
			return nil
		},
		"the machine reboots": func() error {
			if err := p.Reboot(); err != nil {
				return err
			}
			return p.Restart(t.Context())
		},
	} {
		_, last := get(t, p, url+"/count")
		await(t, p, "swapped")
		if err := end(); err != nil {
			t.Fatal(name, err)
		}
		_, next := get(t, p, url+"/count")
		if was, is := number(t, last), number(t, next); is != was+1 {
			t.Errorf("%s: the counter went from %v to %v", name, was, is)
		}
		if after := sum(t, p, url+"/bytes"); after != before {
			t.Errorf("%s: memory is %s and was %s", name, after, before)
		}
	}

	// Who may sees what it costs. Looking does not wake it.
	await(t, p, "swapped")
	if status, _ := get(t, &testkit.Platform{Key: "wrong"}, p.Address+"/metrics"); status != http.StatusUnauthorized {
		t.Errorf("metrics with a wrong key: %d", status)
	}
	var metrics string
	until(t, "the metrics say so", func() bool { // the launcher knows it first
		status, now := get(t, p, p.Address+"/metrics")
		if metrics = now; status != http.StatusOK {
			t.Fatal(status, metrics)
		}
		return strings.Contains(metrics, "\ndoze_sandboxes{tier=\"swapped\"} 1\n")
	})
	for _, want := range []string{
		`doze_sandboxes\{tier="swapped"\} 1`, `doze_sandboxes\{tier="awake"\} 0`,
		`doze_swap_bytes\{tier="swapped"\} [2-9](\.[0-9]+)?e\+08`, `doze_checkpoint_bytes\{tier="swapped"\} [2-9](\.[0-9]+)?e\+08`,
		`doze_sleep_seconds_count\{tier="swapped"\} [1-9]`,
	} {
		if !regexp.MustCompile(`(?m)^` + want).MatchString(metrics) {
			t.Errorf("%s is not among the metrics:\n%s", want, metrics)
		}
	}
	stays(t, p, "memory", "swapped", nap)

	// It stays when dozed stops, and goes with destroy. Another start has not made
	// a second one.
	file, made := ourSwap(t, p, kind)
	if n := strings.Count(p.Printed(), `"kind":"`+kind+`"`); n < 2 {
		t.Errorf("it was chosen in %d starts", n)
	}
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(made); err != nil || info.Mode().Perm() != 0o600 || !swapsTo(t, file) {
		t.Errorf("%+v, %v", info, err)
	}
	shell{t.TempDir()}.ok(t, "dozed", "destroy", "--data", p.Data, "--yes")
	gone(t, file)
	gone(t, made)
	if swapsTo(t, file) {
		t.Error("the kernel swaps to what is destroyed")
	}
	revive(t, p)
	if after := sum(t, p, url+"/bytes"); after != before {
		t.Errorf("after destroy: memory is %s and was %s", after, before)
	}
}

// TestSwapAuto lets dozed choose: it says what and why in one line, chooses the same
// after a crash, and dozed doctor agrees.
func TestSwapAuto(t *testing.T) {
	t.Parallel()
	p, _ := start(t, "--swap", "auto")
	chosen := regexp.MustCompile(`(?m)^.*"msg":"memory of sleeping sandboxes is (?:not )?moved to swap","swap":"auto","kind":"(\w+)","why":"([^"]+)".*$`)
	first := chosen.FindAllStringSubmatch(p.Printed(), -1)
	if len(first) != 1 {
		t.Fatalf("it says %d times what it chose:\n%s", len(first), p.Tail())
	}
	kind := first[0][1]
	t.Logf("%s: %s", kind, first[0][2])
	if kind == "plain" {
		t.Error("nobody asked for a file that can be read on the disk")
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	revive(t, p)
	all := chosen.FindAllStringSubmatch(p.Printed(), -1)
	if len(all) != 2 || all[1][1] != kind {
		t.Fatalf("after a crash it chose %q", all)
	}
	s := shell{t.TempDir()}
	if out := s.ok(t, "dozed", "doctor", "--data", p.Data); !strings.Contains(out, "swap") || kind != "off" && !strings.Contains(out, " "+kind) {
		t.Errorf("the doctor says %s", out)
	}
	if kind != "zram" && kind != "encrypted" {
		t.Skip("SKIPPED: there is nothing to adopt: this host has", kind)
	}
	file, made := ourSwap(t, p, kind)
	if !strings.Contains(all[1][2], "an earlier start made it") || !swapsTo(t, file) {
		t.Errorf("after a crash: %q", all[1][2])
	}
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
	s.ok(t, "dozed", "destroy", "--data", p.Data, "--yes")
	gone(t, made)
	if swapsTo(t, file) {
		t.Error("the kernel swaps to what is destroyed")
	}
	revive(t, p)
}

// TestSwapFull has compressed memory that is smaller than what a sandbox holds: what
// does not fit stays in memory, and nothing is lost.
func TestSwapFull(t *testing.T) {
	t.Parallel()
	const limit = 64 << 20
	p, c := start(t, "--swap", "zram:64M", "--pause-after", "500ms", "--save-after", "100ms", "--swap-after", "200ms", "--disk-after", "1h")
	if printed := p.Printed(); !strings.Contains(printed, `"kind":"zram"`) || strings.Contains(printed, "swap could not be had") {
		t.Skip("SKIPPED: this host has no compressed memory:", p.Tail())
	}
	sb, agent := create(t, c, named("large", 1024))
	url := hold(t, p, sb, agent, 200, 2)
	before := sum(t, p, url+"/bytes")
	for range 2 {
		awaitTier(t, p, "large", "paused")
		time.Sleep(3 * time.Second) // it is moved, as far as that goes
		_, metrics := get(t, p, p.Address+"/metrics")
		taken := regexp.MustCompile(`(?m)^doze_compressed_memory_bytes (\S+)$`).FindStringSubmatch(metrics)
		if taken == nil {
			t.Fatal(metrics)
		}
		if n, err := strconv.ParseFloat(taken[1], 64); err != nil || n > limit {
			t.Errorf("compressed memory takes %s bytes, and may take %d", taken[1], limit)
		}
		t.Logf("compressed memory takes %s bytes", taken[1])
		if after := sum(t, p, url+"/bytes"); after != before {
			t.Errorf("memory is %s and was %s", after, before)
		}
	}
}

// ourSwap returns what the kernel swaps to, and the file in the data directory
// that has it or tells which it is.
func ourSwap(t *testing.T, p *testkit.Platform, kind string) (file, made string) {
	t.Helper()
	made = filepath.Join(p.Data, "swap")
	if kind != "zram" {
		return made, made
	}
	made += ".zram"
	raw, err := os.ReadFile(made)
	if err != nil {
		t.Fatal(err)
	}
	var record struct{ Device int }
	if err := json.Unmarshal(raw, &record); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint("/dev/zram", record.Device), made
}

// swapsTo reports whether the kernel swaps to a file.
func swapsTo(t *testing.T, file string) bool {
	t.Helper()
	raw, err := os.ReadFile("/proc/swaps")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(string(raw), file+" ")
}
