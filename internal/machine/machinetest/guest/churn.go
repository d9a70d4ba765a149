package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	blockBytes = 64 << 10
	blocks     = 512 // of each kind of memory
	// nearby is how many blocks are written to for a while, and shiftEvery how long: the
	// rest of the memory is not touched.
	nearby     = 4
	shiftEvery = 50 * time.Millisecond
	// writes is how many blocks a child process writes before it ends.
	writes = 20
)

// churned is memory of one kind, in blocks.
type churned interface {
	// put writes a block.
	put(block int, content []byte) error
	// get reads what put wrote last. It is an error if it can tell that something else is there.
	get(block int, into []byte) error
}

// churn changes memory in all ways in which a process can, until a file of that name
// appears. It notes what each block has, and writes into a file with the suffix .result
// what it finds in the end.
func churn(until string) error {
	kinds, err := kinds()
	if err != nil {
		return err
	}
	wrong := make([]string, len(kinds))
	var all sync.WaitGroup
	for i, k := range kinds {
		all.Go(func() { wrong[i] = churnOne(k, until) })
	}
	all.Wait()
	result := until + ".result"
	said := "churned: good"
	for i, what := range wrong {
		if what != "" {
			said = fmt.Sprintf("churned: %T: %s", kinds[i], what)
		}
	}
	if err := os.WriteFile(result+".new", []byte(said), 0o600); err != nil { //nolint:gosec // G703: the test named it
		return err
	}
	return os.Rename(result+".new", result) //nolint:gosec // G703: likewise
}

// kinds returns memory of all kinds.
func kinds() ([]churned, error) {
	var own [3][]byte
	for i := range own {
		var err error
		if own[i], err = unix.Mmap(-1, 0, blocks*blockBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON); err != nil {
			return nil, err
		}
	}
	var files [3]*os.File
	for i := range files {
		fd, err := unix.MemfdCreate("churn", 0)
		if err != nil {
			return nil, err
		}
		files[i] = os.NewFile(uintptr(fd), "churn")
		if err := files[i].Truncate(blocks * blockBytes); err != nil {
			return nil, err
		}
	}
	mapped, err := unix.Mmap(int(files[0].Fd()), 0, blocks*blockBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return []churned{stored(own[0]), copied(own[1]), &given{memory: own[2]}, stored(mapped), file{files[1]}, &others{file: files[2]}, remapped{}}, nil
}

// churnOne changes memory of one kind, and returns what is wrong in the end.
func churnOne(k churned, until string) (wrong string) {
	versions := make([]uint64, blocks)
	content, got := make([]byte, blockBytes), make([]byte, blockBytes)
	for block := range versions {
		if err := k.put(block, fillBlock(content, block, 0)); err != nil {
			return err.Error()
		}
	}
	for {
		from, began := rand.IntN(blocks), time.Now() //nolint:gosec // G404: a test
		for time.Since(began) < shiftEvery {
			block := (from + rand.IntN(nearby)) % blocks //nolint:gosec // G404: likewise
			versions[block]++
			if err := k.put(block, fillBlock(content, block, versions[block])); err != nil {
				return err.Error()
			}
			time.Sleep(tick)
		}
		if _, err := os.Stat(until); err == nil { //nolint:gosec // G703: the test named it
			break
		}
	}
	for block, version := range versions {
		if err := k.get(block, got); err != nil {
			return err.Error()
		}
		if want := fillBlock(content, block, version); !bytes.Equal(got, want) {
			return fmt.Sprintf("block %d is not that of version %d", block, version)
		}
	}
	return ""
}

// fillBlock makes the content of a block.
func fillBlock(into []byte, block int, version uint64) []byte {
	for at := 0; at < len(into); at += 8 {
		binary.LittleEndian.PutUint64(into[at:], uint64(block)<<40^version<<16^uint64(at)) //nolint:gosec // G115: small numbers
	}
	return into
}

// stored is written to by the processor.
type stored []byte

func (m stored) put(block int, content []byte) error {
	copy(m[block*blockBytes:], content)
	return nil
}

func (m stored) get(block int, into []byte) error {
	copy(into, m[block*blockBytes:])
	return nil
}

// copied is written to by the kernel, which reads a pipe into it.
type copied []byte

func (m copied) put(block int, content []byte) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	sent := make(chan error, 1)
	go func() { // ends with the pipe
		_, err := w.Write(content)
		sent <- errors.Join(err, w.Close())
	}()
	_, err = io.ReadFull(r, m[block*blockBytes:(block+1)*blockBytes])
	return errors.Join(err, r.Close(), <-sent)
}

func (m copied) get(block int, into []byte) error { return stored(m).get(block, into) }

// given is given back to the kernel, and written to again half of the time.
type given struct {
	memory stored
	last   [blocks][]byte // what put was asked for, of blocks that were only given back
}

func (m *given) put(block int, content []byte) error {
	if err := unix.Madvise(m.memory[block*blockBytes:(block+1)*blockBytes], unix.MADV_DONTNEED); err != nil {
		return err
	}
	if rand.IntN(2) == 0 { //nolint:gosec // G404: likewise
		m.last[block] = bytes.Clone(content)
		return nil
	}
	m.last[block] = nil
	return m.memory.put(block, content)
}

func (m *given) get(block int, into []byte) error {
	err := m.memory.get(block, into)
	if m.last[block] == nil || err != nil {
		return err
	}
	if !bytes.Equal(into, make([]byte, blockBytes)) {
		return fmt.Errorf("block %d was given back, and is not zero", block)
	}
	copy(into, m.last[block])
	return nil
}

// file is written to by calls.
type file struct{ *os.File }

func (f file) put(block int, content []byte) error {
	_, err := f.WriteAt(content, int64(block)*blockBytes)
	return err
}

func (f file) get(block int, into []byte) error {
	_, err := f.ReadAt(into, int64(block)*blockBytes)
	return err
}

// others is written to by child processes, which map it and end soon.
type others struct {
	file  *os.File
	child *exec.Cmd
	tell  io.WriteCloser
	hear  io.ReadCloser
	wrote int
}

func (o *others) put(block int, content []byte) (err error) {
	if o.child == nil {
		o.child = exec.Command("/proc/self/exe", "store") //nolint:noctx // it ends with its input
		o.child.ExtraFiles = []*os.File{o.file}
		if o.tell, err = o.child.StdinPipe(); err != nil {
			return err
		}
		if o.hear, err = o.child.StdoutPipe(); err != nil {
			return err
		}
		if err := o.child.Start(); err != nil {
			return err
		}
	}
	if _, err := o.tell.Write(append(binary.LittleEndian.AppendUint64(nil, uint64(block)), content...)); err != nil { //nolint:gosec // G115: small
		return err
	}
	if _, err := io.ReadFull(o.hear, make([]byte, 1)); err != nil {
		return err
	}
	if o.wrote++; o.wrote%writes > 0 {
		return nil
	}
	if err := o.tell.Close(); err != nil {
		return err
	}
	child := o.child
	o.child = nil
	return child.Wait()
}

func (o *others) get(block int, into []byte) error { return file{o.file}.get(block, into) }

// store is such a child process.
func store() error {
	memory, err := unix.Mmap(3, 0, blocks*blockBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	for {
		var number [8]byte
		if _, err := io.ReadFull(os.Stdin, number[:]); err != nil {
			return nil //nolint:nilerr // that is its end
		}
		block := binary.LittleEndian.Uint64(number[:]) % blocks
		if _, err := io.ReadFull(os.Stdin, memory[block*blockBytes:(block+1)*blockBytes]); err != nil {
			return err
		}
		if _, err := os.Stdout.Write([]byte{1}); err != nil {
			return err
		}
	}
}

// remapped is a new mapping for each block that is written.
type remapped map[int][]byte

func (m remapped) put(block int, content []byte) error {
	if old := m[block]; old != nil {
		if err := unix.Munmap(old); err != nil {
			return err
		}
	}
	memory, err := unix.Mmap(-1, 0, blockBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return err
	}
	m[block] = memory
	return stored(memory).put(0, content)
}

func (m remapped) get(block int, into []byte) error { return stored(m[block]).get(0, into) }

// churnFor begins churn beside all else, and prints why it failed.
func churnFor(until string) {
	go func() { // ends with the file
		if err := churn(until); err != nil {
			fmt.Fprintln(os.Stderr, "guest: churn:", err)
		}
	}()
}
