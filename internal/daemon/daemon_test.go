package daemon_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dozehq/doze/internal/daemon"
)

func TestRunStopsInReverseOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var stopped []string
		service := func(name string, drain time.Duration) daemon.Service {
			return daemon.Service{Name: name, Run: func(ctx context.Context) error {
				<-ctx.Done()
				time.Sleep(drain)
				stopped = append(stopped, name)
				return ctx.Err()
			}}
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(errors.New("SIGTERM")) })

		err := daemon.Run(ctx, service("store", 0), service("loops", time.Minute), service("http", time.Hour))
		if err != nil || !slices.Equal(stopped, []string{"http", "loops", "store"}) {
			t.Errorf("err %v, stopped %v", err, stopped)
		}
	})
}

func TestRunFailsWithTheServiceThatFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		err := daemon.Run(t.Context(),
			daemon.Service{Name: "store", Run: func(ctx context.Context) error { <-ctx.Done(); return nil }},
			daemon.Service{Name: "http", Run: func(context.Context) error { return errors.New("address in use") }},
		)
		if err == nil || err.Error() != "http: address in use" {
			t.Errorf("got %v", err)
		}
	})
}
