package access_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
)

func TestTicketsOpenOnce(t *testing.T) {
	t.Parallel()
	tickets, now := access.NewTickets(), time.Now()
	pass := access.Pass{Sub: "ann", Credential: "key", Workspace: "acme", Sandbox: "web"}
	ticket, until, err := tickets.Issue(t.Context(), pass, now)
	if err != nil || until.Sub(now) > time.Minute || !access.IsTicket(ticket) {
		t.Fatalf("%s until %s, %v", ticket, until, err)
	}
	if _, err := tickets.Renew(t.Context(), ticket, now); err == nil {
		t.Error("a ticket is a lease")
	}
	if got, err := tickets.Redeem(t.Context(), ticket, now); got != pass || err != nil {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := tickets.Redeem(t.Context(), ticket, now); doze.Public(err).Kind != doze.Unauthenticated {
		t.Errorf("twice: %v", err)
	}
	late, until, _ := tickets.Issue(t.Context(), pass, now)
	if _, err := tickets.Redeem(t.Context(), late, until); err == nil {
		t.Error("it opens when it is over")
	}
	lease, err := tickets.Lease(t.Context(), pass, now)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tickets.Redeem(t.Context(), lease, now); err == nil {
		t.Error("a lease is a ticket")
	}
	for range 2 {
		if got, err := tickets.Renew(t.Context(), lease, now.Add(time.Hour)); got != pass || err != nil {
			t.Errorf("%+v, %v", got, err)
		}
	}
	if _, err := tickets.Renew(t.Context(), lease, now.Add(24*time.Hour)); err == nil {
		t.Error("a lease is for ever")
	}
}

// TestTicketsAreBounded: a caller who makes many loses their own, and those of
// many callers are refused until some are over.
func TestTicketsAreBounded(t *testing.T) {
	t.Parallel()
	tickets, now := access.NewTickets(), time.Now()
	other, _, _ := tickets.Issue(t.Context(), access.Pass{Sub: "bob"}, now)
	first, _, _ := tickets.Issue(t.Context(), access.Pass{Sub: "ann"}, now)
	for range 1000 {
		if _, _, err := tickets.Issue(t.Context(), access.Pass{Sub: "ann"}, now); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := tickets.Redeem(t.Context(), first, now); err == nil {
		t.Error("a caller has any number")
	}
	if _, err := tickets.Redeem(t.Context(), other, now); err != nil {
		t.Errorf("another one pays for it: %v", err)
	}
	var err error
	for i := 0; err == nil && i < 1<<20; i++ {
		_, _, err = tickets.Issue(t.Context(), access.Pass{Sub: fmt.Sprint(i)}, now)
	}
	if doze.Public(err).Kind != doze.Exhausted {
		t.Errorf("all of them: %v", err)
	}
	if _, _, err := tickets.Issue(t.Context(), access.Pass{Sub: "late"}, now.Add(time.Minute)); err != nil {
		t.Errorf("when they are over: %v", err)
	}
}
