package proc

import (
	"net"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestParseStat(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]Task{
		"7 (sh) S 1 7 7 0 -1":           {7, 1, 7, 7, "sh", false},
		"7 (a) (b) R 9) Z 2 3 4 0":      {7, 2, 3, 4, "a) (b) R 9", true},
		"7 (sh) S 1 7":                  {},
		"7 sh S 1 7 7":                  {},
		"7 )sh( S 1 7 7":                {},
		"7 (sh) S x 7 7":                {},
		"":                              {},
		"7 (new\nline) T 10 20 30 more": {7, 10, 20, 30, "new\nline", false},
	} {
		got, ok := parseStat(7, []byte(line))
		if ok != (want != Task{}) || ok && got != want {
			t.Errorf("%q: %+v, %v", line, got, ok)
		}
	}
}

func TestFamily(t *testing.T) {
	t.Parallel()
	task := func(pid, parent, group int) Task { return Task{PID: pid, Parent: parent, Group: group} }
	all := []Task{
		task(1, 0, 1), task(10, 1, 10), task(11, 10, 10), task(12, 11, 12), // a chain
		task(13, 1, 10),                   // an orphan of the group
		task(14, 13, 14), task(20, 1, 20), // its child, a stranger
	}
	pids := func(family map[int]Task) (ids []int) {
		for pid := range family {
			ids = append(ids, pid)
		}
		return ids
	}
	sorted := cmpopts.SortSlices(func(a, b int) bool { return a < b })
	if diff := cmp.Diff([]int{10, 11, 12, 13, 14}, pids(Family(10, true, all)), sorted); diff != "" {
		t.Error(diff)
	}
	if got := Family(10, false, all); len(got) != 0 {
		t.Errorf("a stranger with the pid of the leader has the family %v", got)
	}
	if got := Family(2, true, all); len(got) != 0 {
		t.Errorf("nobody has the pid 2, and 20 is in its family: %v", got)
	}
	if diff := cmp.Diff([]int{11, 12, 13, 14}, pids(Family(10, false, all[2:])), sorted); diff != "" {
		t.Errorf("after the leader: %s", diff)
	}
}

func row(local, state, inode string) string {
	return "  0: " + local + " 00000000:0000 " + state + " 00000000:00000000 00:00000000 00000000 0 0 " + inode + " 1 0 100 0\n"
}

func TestParseSockets(t *testing.T) {
	t.Parallel()
	table := "  sl  local_address rem_address   st\n" +
		row("00000000:1F90", "0A", "1") +
		row("0100007F:1F91", "0A", "2") +
		row("0A00000A:1F92", "01", "3") +
		row("00000000000000000000000000000000:1F93", "0A", "4") +
		row("00000000000000000000000001000000:1F94", "0A", "5") +
		row("0000000000000000FFFF00000100007F:1F95", "0A", "6") +
		row("0A00000A:1F90", "FF", "7") + row("0A00:1F90", "0A", "8") + "rubbish\n"
	type brief struct {
		local, state      string
		serves, reachable bool
	}
	var got []brief
	for _, s := range parseSockets([]byte(table), "tcp") {
		got = append(got, brief{s.Local.String(), s.State, s.Serves(), s.Reachable()})
	}
	want := []brief{
		{"0.0.0.0:8080", "LISTEN", true, true},
		{"127.0.0.1:8081", "LISTEN", true, false},
		{"10.0.0.10:8082", "ESTAB", false, true},
		{"[::]:8083", "LISTEN", true, true},
		{"[::1]:8084", "LISTEN", true, false},
		{"127.0.0.1:8085", "LISTEN", true, false},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(brief{})); diff != "" {
		t.Error(diff)
	}
}

// The sockets of this process are found among all.
func TestOwned(t *testing.T) {
	t.Parallel()
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	all, err := Root.Sockets()
	if err != nil {
		t.Fatal(err)
	}
	me, ok := Root.Task(os.Getpid())
	if !ok || me.Parent != os.Getppid() {
		t.Errorf("I am %+v, %v", me, ok)
	}
	want := map[string]bool{"tcp " + tcp.Addr().String(): true, "udp " + udp.LocalAddr().String(): true}
	for _, s := range Root.Owned(map[int]Task{me.PID: me}, all)[me.PID] {
		if s.Serves() {
			delete(want, s.Protocol+" "+s.Local.String())
		}
	}
	if len(want) != 0 {
		t.Errorf("not found: %v", want)
	}
	if _, err := Dir(t.TempDir()).Sockets(); err == nil {
		t.Error("no tables are no error")
	}
}

func FuzzSockets(f *testing.F) {
	f.Add([]byte(row("00000000:1F90", "0A", "1")), []byte("7 (sh) S 1 7 7"))
	f.Fuzz(func(t *testing.T, table, stat []byte) {
		for _, s := range parseSockets(table, "tcp") {
			if !s.Local.IsValid() || s.State == "" {
				t.Errorf("%+v", s)
			}
		}
		if task, ok := parseStat(7, stat); ok && task.PID != 7 {
			t.Errorf("%+v", task)
		}
	})
}
