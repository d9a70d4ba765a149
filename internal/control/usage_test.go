package control_test

import (
	"errors"
	"testing"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/control"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/plane/planetest"
)

// TestSandboxUsage: the usage of one sandbox and of all says who takes what, with the
// limits of the records, for those who may see the sandboxes, and only if the node says it.
func TestSandboxUsage(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		p.Create(`{"metadata":{"name":"a","labels":{"team":"x"}},"spec":{"runtime":{"memory":1024}}}`)
		p.Create(`{"metadata":{"name":"b"},"spec":{"runtime":{"memory":2048}}}`)
		one := planetest.Want[doze.SandboxUsage](p, 200, "GET", "/sandboxes/a/usage", "")
		if one.Name != "a" || one.Status != "DEPLOYED" || one.State != "RUNNING" || one.Tier != "awake" {
			t.Errorf("%+v", one)
		}
		if m := one.Memory; m.LimitBytes != 1<<30 || m.ResidentBytes != 1<<30 || one.Processor.Limit != 0.5 || one.MeasuredAt.IsZero() {
			t.Errorf("%+v", one)
		}
		type list = []doze.SandboxUsage
		all := planetest.Want[list](p, 200, "GET", "/usage/sandboxes?sort=name:asc", "")
		if len(all) != 2 || all[0].Name != "a" || all[1].Memory.LimitBytes != 2<<30 {
			t.Errorf("%+v", all)
		}
		if x := planetest.Want[list](p, 200, "GET", "/usage/sandboxes?labels=team=x", ""); len(x) != 1 || x[0].Name != "a" {
			t.Errorf("%+v", x)
		}
		planetest.Want[any](p, 404, "GET", "/sandboxes/none/usage", "")
		planetest.Want[doze.Workspace](p, 200, "POST", "/workspaces", `{"name":"team"}`)
		planetest.Want[any](p, 404, "GET", "/sandboxes/a/usage?workspace=team", "")
		if others := planetest.Want[list](p, 200, "GET", "/usage/sandboxes?workspace=team", ""); len(others) != 0 {
			t.Errorf("%+v", others)
		}

		p.Node.Set("consumption", doze.Wrap(errors.New("gone"), doze.Unavailable, "the node is away"))
		planetest.Want[any](p, 503, "GET", "/sandboxes/a/usage", "")
		planetest.Want[any](p, 503, "GET", "/usage/sandboxes", "")
		p.Node.Set("consumption", nil)

		planetest.Want[any](p, 200, "DELETE", "/sandboxes/a", "")
		planetest.After(1)
		ended := planetest.Want[list](p, 200, "GET", "/usage/sandboxes?showTerminated=true&sort=name:asc", "")
		if len(ended) != 2 || ended[0].Status != "TERMINATED" || ended[0].Tier != "" || ended[0].Memory.ResidentBytes != 0 {
			t.Errorf("%+v", ended)
		}
	})
}

// TestSurveyOfAway: the feed shows sandboxes of a node that is away as the records have them,
// beside all others. Usage is an error then: nobody knows it.
func TestSurveyOfAway(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		p.Create(`{"metadata":{"name":"a"}}`)
		p.Create(`{"metadata":{"name":"b"}}`)
		gone := doze.Wrap(fleet.ErrUnreachable, doze.Unavailable, "the node cannot be reached")
		p.Node.Set("statuses "+machineOf(p, "a"), gone)
		survey := func() (all []doze.FeedSandbox, err error) {
			err = control.Survey(t.Context(), p.Rooms.Control, "main", func(page []doze.FeedSandbox) error {
				all = append(all, page...)
				return nil
			})
			return all, err
		}
		all, err := survey()
		if err != nil || len(all) != 2 {
			t.Fatal(all, err)
		}
		for _, sb := range all {
			if sb.Status != "DEPLOYED" || sb.State != "RUNNING" {
				t.Errorf("%+v", sb)
			}
		}
		planetest.Want[any](p, 503, "GET", "/usage/sandboxes", "")
		p.Node.Set("statuses "+machineOf(p, "a"), nil)
		p.Node.Set("statuses, late", gone)
		all, err = survey()
		if err != nil || len(all) != 2 || all[0].Memory.ResidentBytes == 0 {
			t.Errorf("while a node is silent, nobody knows what others take: %+v, %v", all, err)
		}
		p.Node.Set("statuses, late", nil)
		p.Node.Set("consumption", doze.Errorf(doze.Unavailable, "not now"))
		if _, err := survey(); err == nil {
			t.Error("a node that answers with an error counts as away")
		}
	})
}
