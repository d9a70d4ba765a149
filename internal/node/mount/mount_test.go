package mount_test

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/http"
	"slices"
	"testing"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agentapi"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/node/mount"
)

type files struct{ http.Handler }

func (files) Close(context.Context) error { return nil }

func at(id, path string) fleet.DriveMount {
	return fleet.DriveMount{DriveMount: doze.DriveMount{MountPath: path}, ID: id}
}

// TestTable: what is added is listed by path until it is removed.
func TestTable(t *testing.T) {
	table := mount.New()
	table.Add(at("1", "/b"), files{})
	table.Add(at("2", "/a"), files{})
	first := table.Get("1")
	if all := table.List(); len(all) != 2 || all[0].MountPath != "/a" || !table.Has(first) {
		t.Errorf("%+v are mounted", all)
	}
	table.Remove("1")
	if table.Has(first) || table.Get("1") != nil {
		t.Error("what was removed is mounted")
	}
	table.Add(at("1", "/c"), files{})
	if table.Has(first) {
		t.Error("a mount that has the id of one before is that one")
	}
	if gone := table.Clear(); len(gone) != 2 || len(table.List()) != 0 {
		t.Errorf("%d of 2 are cleared, and %d are left", len(gone), len(table.List()))
	}
}

// TestServe: each mount whose bucket is there is served by one goroutine.
func TestServe(t *testing.T) {
	table := mount.New()
	table.Add(at("1", "/a"), files{})
	table.Add(at("2", "/b"), nil)
	var began []string
	start := func(ok bool) func(m *mount.Mount) bool {
		return func(m *mount.Mount) bool { began = append(began, m.ID); return ok }
	}
	table.Serve(start(false))
	table.Serve(start(true))
	table.Serve(start(true))
	if !slices.Equal(began, []string{"1", "1"}) {
		t.Errorf("%v began", began)
	}
	table.Get("1").Left()
	if table.Serve(start(true)); len(began) != 3 {
		t.Error("a mount that nobody serves any more is not served again")
	}
}

// TestAlike: what makes two mounts the same one.
func TestAlike(t *testing.T) {
	a := at("1", "/a")
	if b := at("2", "/a"); !mount.Alike(a, b) {
		t.Error("the id is part of a mount")
	}
	for name, change := range map[string]func(*fleet.DriveMount){
		"path":      func(m *fleet.DriveMount) { m.MountPath = "/b" },
		"drive":     func(m *fleet.DriveMount) { m.DriveID = "d" },
		"part":      func(m *fleet.DriveMount) { m.DrivePath = "/sub" },
		"read-only": func(m *fleet.DriveMount) { m.ReadOnly = true },
	} {
		b := at("2", "/a")
		if change(&b); mount.Alike(a, b) {
			t.Errorf("%s makes no difference", name)
		}
	}
}

// TestAnswer: an agent without the mount ends the connection, and says so.
func TestAnswer(t *testing.T) {
	table := mount.New()
	table.Add(at("1", "/a"), files{})
	ours, theirs := net.Pipe()
	defer func() { _, _ = ours.Close(), theirs.Close() }()
	go func() {
		if _, err := http.ReadRequest(bufio.NewReader(theirs)); err != nil {
			t.Error(err)
		}
		_, _ = theirs.Write([]byte("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"))
	}()
	if err := table.Get("1").Answer(t.Context(), ours); !errors.Is(err, agentapi.ErrNoMount) {
		t.Errorf("the connection ends with %v", err)
	}
}
