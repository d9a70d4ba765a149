// Command guest is the program inside the machines that the conformance suite
// runs for real. It is linked statically: its file is all that a root file
// system needs.
package main

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/dozehq/doze/internal/machine/machinetest"
)

// tick is how often a counter grows.
const tick = time.Millisecond

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "guest:", err)
		os.Exit(1) //nolint:forbidigo // this is main
	}
}

func run(args []string) error {
	switch {
	case len(args) == 1 && args[0] == "count":
		return count(os.Stdout)
	case len(args) == 2 && args[0] == "eat":
		megabytes, err := strconv.Atoi(args[1])
		if err != nil {
			return err
		}
		(&world{}).fill(megabytes)
		return nil
	case len(args) == 2 && args[0] == "-hostname": // as the agent does
		return syscall.Sethostname([]byte(args[1]))
	case len(args) == 1 && args[0] == "store":
		return store()
	case len(args) == 2 && args[0] == "churn":
		churnFor(args[1])
	case len(args) == 2 && args[0] == "isolate":
		if err := isolate(args[1]); err != nil {
			return err
		}
	}
	w := &world{began: time.Now(), children: map[int]int64{}}
	go func() {
		for range time.NewTicker(tick).C {
			w.count.Add(1)
		}
	}()
	server := &http.Server{
		Addr: fmt.Sprintf(":%d", machinetest.Port), Handler: withFiles(machinetest.Handler(w)), ReadHeaderTimeout: time.Minute,
	}
	return server.ListenAndServe()
}

// isolate makes a network namespace that has nothing but a socket that listens,
// until a file of that name appears.
func isolate(until string) error {
	runtime.LockOSThread() // the main thread, which Go never ends
	defer runtime.UnlockOSThread()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends here, and was the only one inside
		if err := syscall.Unshare(syscall.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		inside, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // nothing would end it
		done <- err
		if err != nil {
			return
		}
		go func() {
			for range time.NewTicker(tick).C {
				if _, err := os.Stat(until); err == nil { //nolint:gosec // G703: the test named it
					_ = inside.Close() // it listens to nobody
					return
				}
			}
		}()
	}()
	return <-done
}

// count is a child process.
func count(out io.Writer) error {
	var n int64
	for range time.NewTicker(10 * tick).C {
		n++
		if _, err := fmt.Fprintln(out, n); err != nil {
			return err
		}
	}
	return nil
}

// world implements [machinetest.World] with what the machine offers.
type world struct {
	count atomic.Int64
	fired atomic.Int64
	began time.Time

	following sync.WaitGroup // of all children

	mu       sync.Mutex
	memory   [][]byte      // guarded by mu
	children map[int]int64 // guarded by mu
	started  []*exec.Cmd   // guarded by mu; the children
	held     *os.File      // guarded by mu
}

func (w *world) Count() int64 { return w.count.Load() }

func (w *world) Alloc(megabytes int) error {
	w.fill(megabytes)
	return nil
}

// fill writes different bytes to every page: the same pages could be stored
// once.
func (w *world) fill(megabytes int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for range megabytes {
		block := make([]byte, 1<<20)
		seed := uint64(len(w.memory) + 1)
		for i := range block {
			seed ^= seed << 13
			seed ^= seed >> 7
			seed ^= seed << 17
			block[i] = byte(seed & 0xff)
		}
		w.memory = append(w.memory, block)
	}
}

func (w *world) Change(from, megabytes int) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range megabytes {
		block := w.memory[(from+i)%len(w.memory)]
		for at := 0; at < len(block); at += 64 {
			block[at]++
		}
	}
	return nil
}

func (w *world) Sum() (sum uint32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, block := range w.memory {
		sum = crc32.Update(sum, crc32.IEEETable, block)
	}
	return sum
}

func (w *world) Uptime() time.Duration { return time.Since(w.began) }

func (w *world) Random() string {
	raw := make([]byte, 16)
	_, _ = rand.Read(raw) // never fails
	return hex.EncodeToString(raw)
}

func (w *world) WriteFile(name, text string) error { return os.WriteFile(name, []byte(text), 0o600) }

func (w *world) ReadFile(name string) (string, error) {
	raw, err := os.ReadFile(name)
	return string(raw), err
}

func (w *world) Env() []string { return os.Environ() }

func (w *world) Hostname() (string, error) { return os.Hostname() }

func (w *world) Spawn(n int) error {
	for range n {
		child := exec.Command("/proc/self/exe", "count") //nolint:noctx // it lives as long as the machine
		out, err := child.StdoutPipe()
		if err != nil {
			return err
		}
		if err := child.Start(); err != nil {
			return err
		}
		w.mu.Lock()
		w.started = append(w.started, child)
		w.mu.Unlock()
		w.following.Go(func() { w.follow(child, out) })
	}
	return nil
}

// follow notes what a child counts until it ends.
func (w *world) follow(child *exec.Cmd, out io.Reader) {
	for lines := bufio.NewScanner(out); lines.Scan(); {
		n, _ := strconv.ParseInt(lines.Text(), 10, 64)
		w.mu.Lock()
		w.children[child.Process.Pid] = n
		w.mu.Unlock()
	}
	_ = child.Wait() // it is gone, for whatever reason
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.children, child.Process.Pid)
}

func (w *world) Children() map[int]int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.children)
}

func (w *world) Reap() {
	w.mu.Lock()
	started := w.started
	w.started = nil
	w.mu.Unlock()
	for _, child := range started {
		_ = child.Process.Kill() // or it has ended
	}
	w.following.Wait()
}

func (w *world) Timer(after time.Duration) { time.AfterFunc(after, func() { w.fired.Add(1) }) }

func (w *world) Fired() int { return int(w.fired.Load()) }

func (w *world) Hold(text string) error {
	f, err := os.CreateTemp("/", "held")
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held = f
	if _, err := f.WriteString(text); err != nil {
		return err
	}
	return os.Remove(f.Name())
}

func (w *world) Held() (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	raw, err := io.ReadAll(io.NewSectionReader(w.held, 0, 1<<20))
	return string(raw), err
}

func (w *world) Eat(megabytes int) (string, error) {
	child := exec.Command("/proc/self/exe", "eat", strconv.Itoa(megabytes)) //nolint:gosec,noctx // G204: a number; it ends by itself
	var said bytes.Buffer
	child.Stderr = &said
	err := child.Run()
	return strings.TrimSpace(fmt.Sprint(child.ProcessState, " ", err, " ", said.String())), nil
}

func (w *world) Spin(threads int, d time.Duration) {
	var busy sync.WaitGroup
	for range threads {
		busy.Go(func() {
			for end := time.Now().Add(d); time.Now().Before(end); {
			}
		})
	}
	busy.Wait()
}

func (w *world) Print(text string) {
	fmt.Fprintln(os.Stdout, text)
	fmt.Fprintln(os.Stderr, text)
}

func (w *world) Exit() { os.Exit(0) } //nolint:forbidigo // what it is for
