package store_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/store"
)

// TestRoomForDevices: a full table loses devices of the network that has the most.
func TestRoomForDevices(t *testing.T) {
	onBoth(t, func(d database) {
		t, s := d.t, d.open(d.t)
		most := store.Waiting{PerSource: 3, All: 6}
		add := func(source string, n int) {
			t.Helper()
			id := fmt.Sprint(source, n)
			err := s.InsertDevice(t.Context(), store.Grant{
				ID: id, UserCode: id, Source: source, Device: true, Expires: epoch.Add(time.Hour + time.Duration(n)*time.Second),
			}, most, epoch)
			if err != nil {
				t.Fatal(err)
			}
		}
		waits := func(id string) bool {
			t.Helper()
			_, err := s.GrantByUserCode(t.Context(), id, epoch)
			if err != nil && doze.Public(err).Kind != doze.NotFound {
				t.Fatal(err)
			}
			return err == nil
		}
		for n := range 5 {
			add("a", n) // of its own three
		}
		add("b", 0)
		add("c", 0)
		add("d", 0) // six in all
		add("e", 0) // in the place of one of a
		for id, want := range map[string]bool{
			"a0": false, "a1": false, "a2": false, "a3": true, "a4": true, "b0": true, "c0": true, "d0": true, "e0": true,
		} {
			if got := waits(id); got != want {
				t.Errorf("%s waits: %t", id, got)
			}
		}
	})
}

// TestLoginSources: the networks that were used last are kept, and grants too.
func TestLoginSources(t *testing.T) {
	onBoth(t, func(d database) {
		t, s := d.t, d.open(d.t)
		if err := s.InsertUser(t.Context(), store.User{User: doze.User{Sub: "u", Email: "u@w.test"}}); err != nil {
			t.Fatal(err)
		}
		for n := range 20 {
			if err := s.NoteLoginSource(t.Context(), "u", fmt.Sprint("net", n), epoch.Add(time.Duration(n)*time.Hour)); err != nil {
				t.Fatal(err)
			}
		}
		for network, want := range map[string]bool{"net3": false, "net4": true, "net19": true, "none": false} {
			if got, err := s.LoginSource(t.Context(), "u", network, epoch); got != want || err != nil {
				t.Errorf("%s: %t, %v", network, got, err)
			}
		}
		if got, err := s.LoginSource(t.Context(), "u", "net4", epoch.Add(5*time.Hour)); got || err != nil {
			t.Errorf("long ago: %t, %v", got, err)
		}
		for n := range 4 {
			g := store.Grant{ID: fmt.Sprint("g", n), Sub: "u", Phase: store.GrantActive, Expires: epoch.Add(time.Duration(n+1) * time.Hour)}
			if err := s.InsertGrant(t.Context(), g, epoch); err != nil {
				t.Fatal(err)
			}
		}
		if ended, err := s.TrimGrants(t.Context(), "u", 3, epoch.Add(2*time.Hour)); err != nil || len(ended) != 1 || ended[0] != "g0" {
			t.Errorf("%q, %v", ended, err)
		}
		if g, err := s.Grant(t.Context(), "g0", epoch); err != nil || g.Phase != store.GrantRevoked {
			t.Errorf("%+v, %v", g, err)
		}
	})
}
