package node_test

import (
	"cmp"
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/fleet/fleettest"
	"github.com/dozehq/doze/internal/node"
)

// whole is a node with builders, and with a bucket that is empty: copies come to nothing.
type whole struct {
	*node.Node
	fleet.Builder
}

func (w whole) Depart(ctx context.Context, uid string) error {
	_, _, done, err := w.CopyDeparting(ctx, uid)
	if err == nil {
		err = done()
	}
	return err
}

func (w whole) Revive(context.Context, fleet.Order, time.Time, bool) (time.Time, error) {
	return time.Time{}, doze.Errorf(doze.NotFound, "the bucket is empty")
}

func (w whole) SaveVolume(ctx context.Context, id string) error {
	return w.Travels().Lend(ctx, id, func(_ context.Context, file string) error {
		_, err := os.Stat(file)
		return err
	})
}

func (w whole) SaveSnapshot(_ context.Context, id string) error {
	_, _, err := w.SnapshotOut(id)
	return err
}

func (w whole) SaveBuilt(_ context.Context, ref string) error {
	if _, there := w.Builder.(*fleettest.Builder).Image(ref); !there {
		return doze.Errorf(doze.NotFound, "no such image")
	}
	return nil
}

// TestFleet: a node keeps the promises of the contract, to who is in the same
// process and to a client over the network.
func TestFleet(t *testing.T) {
	t.Parallel()
	open := func(t *testing.T) fleet.Node {
		t.Helper()
		h := newHost(t)
		o := h.options()
		o.CheckImage = func(ref string) error {
			if strings.Contains(ref, " ") {
				return &doze.Error{Kind: doze.Invalid, Name: doze.NameInvalidImage, Message: "the image cannot be run"}
			}
			return nil
		}
		image := o.Image
		o.Image = func(ctx context.Context, ref string, login *fleet.Login) (node.Image, error) {
			if err := cmp.Or(o.CheckImage(ref), fleettest.CheckLogin(ref, login)); err != nil {
				return node.Image{}, err
			}
			return image(ctx, ref, login)
		}
		o.PinImage = func(_ context.Context, ref string, login *fleet.Login) (fleet.Pinned, error) {
			return fleet.Pinned{Ref: ref + "@sha256:0", Bytes: 1}, cmp.Or(o.CheckImage(ref), fleettest.CheckLogin(ref, login))
		}
		h.withLogs(&o)
		return whole{h.startWith(o).Node, new(fleettest.Builder)}
	}
	t.Run("in process", func(t *testing.T) {
		t.Parallel()
		fleettest.Run(t, fleettest.Host{Node: open, Image: "base", Private: "example.com/private:1"})
	})
	t.Run("over loopback", func(t *testing.T) {
		t.Parallel()
		fleettest.Run(t, fleettest.Host{Image: "base", Private: "example.com/private:1", Node: func(t *testing.T) fleet.Node {
			t.Helper()
			mux := http.NewServeMux()
			fleet.NewServer(open(t), nil).Register(mux)
			s := httptest.NewUnstartedServer(mux)
			s.EnableHTTP2 = true
			s.StartTLS()
			t.Cleanup(s.Close)
			return fleet.NewClient(s.URL, s.Client().Transport)
		}})
	})
}
