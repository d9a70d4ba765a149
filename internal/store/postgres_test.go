package store_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/listing"
	"github.com/dozehq/doze/internal/seal"
	"github.com/dozehq/doze/internal/store"
	"github.com/dozehq/doze/internal/testkit/postgres"
)

func onPostgres(t *testing.T) database {
	t.Helper()
	return database{t, postgres.Database(t), filepath.Join(t.TempDir(), "key")}
}

// TestTextIsOrderedByItsBytes: a cursor and the names of a list mean the same in
// each database, whatever its locale.
func TestTextIsOrderedByItsBytes(t *testing.T) {
	onBoth(t, func(d database) {
		t := d.t
		s := d.open(t)
		for _, name := range []string{"b", "a", "B", "ä", "a-b", "ab", "_"} {
			insert(t, s, name)
		}
		var got []string
		q := listing.Query{Workspace: "w", Sort: listing.NameUp, Limit: 2}
		for {
			page, err := s.List(t.Context(), q, epoch)
			if err != nil {
				t.Fatal(err)
			}
			for _, sb := range page.Records {
				got = append(got, sb.Metadata.Name)
			}
			if q.Cursor = page.Next; q.Cursor == "" {
				break
			}
		}
		if diff := cmp.Diff([]string{"B", "_", "a", "a-b", "ab", "b", "ä"}, got); diff != "" {
			t.Error(diff)
		}
	})
}

// recovers waits until the records can be written and read again.
func recovers(t *testing.T, s *store.Store) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		err := s.SetSetting(t.Context(), "k", "v")
		if err == nil {
			_, err = s.Setting(t.Context(), "k")
		}
		switch {
		case err == nil:
			return
		case kind(err) != doze.Unavailable:
			t.Fatalf("meanwhile: %v", err)
		case time.Now().After(deadline):
			t.Fatalf("it does not recover: %v", err)
		}
	}
}

func TestTheServerGoesAndComes(t *testing.T) {
	t.Parallel()
	d := onPostgres(t)
	s := d.open(t)
	sb := insert(t, s, "a")

	postgres.Break(t, d.address)
	if _, err := s.Sandbox(t.Context(), sb.UID); err != nil {
		t.Errorf("a read on a connection that was lost: %v", err)
	}
	recovers(t, s)

	postgres.Refuse(t, d.address)
	for name, call := range map[string]func() error{
		"read":  func() error { _, err := s.Sandbox(t.Context(), sb.UID); return err },
		"write": func() error { return s.SetSetting(t.Context(), "k", "v") },
		"a change": func() error {
			_, err := s.Apply(t.Context(), sb.UID, store.Step{On: doze.Placed, At: epoch})
			return err
		},
	} {
		if err := call(); kind(err) != doze.Unavailable || !strings.Contains(doze.Public(err).Message, "try again") {
			t.Errorf("%s: %v", name, err)
		}
	}
	postgres.Admit(t, d.address)
	recovers(t, s)
	if got, err := s.Sandbox(t.Context(), sb.UID); err != nil || got.Phase != doze.Pending {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestOneDozedForADatabase: another one is refused; if one was away while
// another one wrote, it must not go on with what it has in memory.
func TestOneDozedForADatabase(t *testing.T) {
	t.Parallel()
	d := onPostgres(t)
	first := d.open(t)
	cipher, err := seal.Open(d.key)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Open(t.Context(), d.address, cipher); kind(err) != doze.Unavailable || !strings.Contains(err.Error(), "another dozed uses") {
		t.Errorf("a second one: %v", err)
	}

	postgres.Break(t, d.address)
	second := d.open(t)
	if err := first.SetSetting(t.Context(), "k", "first"); kind(err) != doze.Unavailable {
		t.Errorf("the first one still writes: %v", err)
	}
	if err := second.SetSetting(t.Context(), "k", "second"); err != nil {
		t.Fatal(err)
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	if err := first.SetSetting(t.Context(), "k", "first"); kind(err) != doze.Unavailable || !strings.Contains(err.Error(), "restart this one") {
		t.Errorf("the first one writes again: %v", err)
	}
	if v, err := d.open(t).Setting(t.Context(), "k"); v != "second" || err != nil {
		t.Errorf("%q, %v", v, err)
	}
}

// TestOddText: PostgreSQL keeps no NUL, and only UTF-8.
func TestOddText(t *testing.T) {
	t.Parallel()
	s := onPostgres(t).open(t)
	for name, text := range map[string]string{"NUL": "a\x00b", "no UTF-8": "a\xff"} {
		if _, err := s.SandboxByName(t.Context(), "w", text); kind(err) != doze.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	insert(t, s, "a") // and it goes on
}

func TestAddressesDoNotLeakPasswords(t *testing.T) {
	t.Parallel()
	const password = "hunter2"
	for address, want := range map[string]struct{ good, password bool }{
		"postgres://u@h/db":                              {true, false},
		"postgresql://u@h:5432/db?sslmode=disable":       {true, false},
		"postgres:///db?host=/run/postgresql":            {true, false},
		"postgres://u:" + password + "@h/db":             {true, true},
		"postgres://u@h/db?password=" + password:         {true, true},
		"postgres://u:" + password + "#@h/db":            {false, true},
		"postgres://u:" + password + "/x@h:5432/db":      {false, true},
		"postgres://u:" + password + "%zz@h/db":          {false, true},
		"postgres://u:" + password + "@h:port/db":        {false, true},
		"postgres://u:" + password + "@h/db?sslmode=odd": {false, true},
		"host=h user=u dbname=db password=" + password:   {false, false},
		"mysql://u@h/db":                                 {false, false},
		"":                                               {false, false},
	} {
		err := store.CheckAddress(address)
		if (err == nil) != want.good {
			t.Errorf("%s: %v", address, err)
		}
		if err != nil && strings.Contains(err.Error(), password) {
			t.Errorf("%s: the error tells the password: %v", address, err)
		}
		if has := store.HasPassword(address); has != want.password {
			t.Errorf("%s has a password: %t", address, has)
		}
	}
}

// TestErrorsDoNotTellThePassword: not when nobody answers either.
func TestErrorsDoNotTellThePassword(t *testing.T) {
	t.Parallel()
	cipher, err := seal.New()
	if err != nil {
		t.Fatal(err)
	}
	_, err = store.Open(t.Context(), "postgres://u:hunter2@"+"/db?host="+t.TempDir(), cipher)
	if kind(err) != doze.Unavailable || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("%v", err)
	}
}
