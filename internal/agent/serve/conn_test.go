package serve

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"time"

	"github.com/dozehq/doze/internal/agent/scratch"
)

// connected returns both ends of a connection; ours reads ahead.
func connected(t *testing.T) (ours *conn, theirs net.Conn) {
	t.Helper()
	tcp, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	if theirs, err = net.Dial("tcp", tcp.Addr().String()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { theirs.Close() })
	accepted, err := listener{tcp}.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { accepted.Close() })
	ours, ok := accepted.(*conn)
	if !ok {
		t.Fatalf("the connection is a %T", accepted)
	}
	return ours, theirs
}

// lendable returns how much memory can be lent now.
func lendable() int {
	var all []*[scratch.Size]byte
	for b := scratch.Lend(); b != nil; b = scratch.Lend() {
		all = append(all, b)
	}
	for _, b := range all {
		scratch.Return(b)
	}
	return len(all)
}

func TestConnReadsAllOfIt(t *testing.T) {
	all := lendable()
	ours, theirs := connected(t)
	want := make([]byte, 8<<20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(want)
	go func() {
		for rest := want; len(rest) > 0; {
			n := min(len(rest), 1+rand.IntN(1<<18))
			_, _ = theirs.Write(rest[:n])
			rest = rest[n:]
		}
		_ = theirs.Close()
	}()
	var got []byte
	var err error
	for buf := make([]byte, 10<<10); err == nil; {
		var n int
		n, err = ours.Read(buf[:1+rand.IntN(len(buf))])
		got = append(got, buf[:n]...)
	}
	if !errors.Is(err, io.EOF) || !bytes.Equal(got, want) {
		t.Errorf("%d of %d bytes, or others, %v", len(got), len(want), err)
	}
	if n := lendable(); n != all {
		t.Errorf("%d pieces of memory can be lent, %d before", n, all)
	}
}

func TestConnReadsAhead(t *testing.T) {
	all := lendable()
	ours, theirs := connected(t)
	if _, err := theirs.Write(make([]byte, 64<<10)); err != nil {
		t.Fatal(err)
	}
	small := make([]byte, aheadMin-1)
	if _, err := io.ReadFull(ours, small); err != nil || ours.fast || len(ours.rest) > 0 {
		t.Errorf("after a small read, fast is %v and %d bytes are there, %v", ours.fast, len(ours.rest), err)
	}
	if _, err := io.ReadFull(ours, make([]byte, aheadMin)); err != nil || !ours.fast || len(ours.rest) > 0 {
		t.Errorf("after a full read, fast is %v and %d bytes are there, %v", ours.fast, len(ours.rest), err)
	}
	if n, err := ours.Read(small); n != len(small) || err != nil || len(ours.rest) < aheadMin {
		t.Errorf("then %d bytes are there, %v", len(ours.rest), err)
	}
	if n := lendable(); n != all-1 {
		t.Errorf("%d pieces of memory can be lent, %d before", n, all)
	}
	ours.Close() // with what nobody has read
	if n := lendable(); n != all {
		t.Errorf("after the end, %d pieces of memory can be lent, %d before", n, all)
	}
	if n, err := ours.Read(small); n != 0 || !errors.Is(err, net.ErrClosed) {
		t.Errorf("after the end, %d bytes and %v", n, err)
	}
}

// Who sends fast and stops takes no memory, and deadlines count.
func TestConnWaits(t *testing.T) {
	all := lendable()
	ours, theirs := connected(t)
	if _, err := theirs.Write(make([]byte, aheadMin)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(ours, make([]byte, aheadMin)); err != nil || !ours.fast {
		t.Fatalf("fast is %v, %v", ours.fast, err)
	}
	if err := ours.SetReadDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if n, err := ours.Read(make([]byte, 1)); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a read without anything returned %d and %v", n, err)
	}
	if n := lendable(); n != all {
		t.Errorf("%d pieces of memory can be lent, %d before", n, all)
	}
	// Copied by the one who took it over, nothing is lost.
	_ = ours.SetReadDeadline(time.Time{})
	ours.fast = true
	if _, err := theirs.Write([]byte("the rest of it")); err != nil {
		t.Fatal(err)
	}
	_ = theirs.Close()
	first := make([]byte, 4)
	var rest bytes.Buffer
	_, err := io.ReadFull(ours, first)
	if _, e := io.Copy(&rest, ours); err != nil || e != nil || string(first)+rest.String() != "the rest of it" {
		t.Errorf("%q and %q, %v, %v", first, &rest, err, e)
	}
}
