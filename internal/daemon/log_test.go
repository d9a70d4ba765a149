package daemon_test

import (
	"bytes"
	"log" //nolint:depguard // it is what libraries use
	"log/slog"
	"strings"
	"testing"

	"github.com/dozehq/doze/internal/daemon"
)

// TestLog is not parallel, for there is one log.
func TestLog(t *testing.T) {
	was, to, flags := slog.Default(), log.Writer(), log.Flags()
	defer func() { // the default of slog writes to log, which SetDefault has changed too
		slog.SetDefault(was)
		slog.SetLogLoggerLevel(slog.LevelInfo)
		log.SetOutput(to)
		log.SetFlags(flags)
	}()
	var b bytes.Buffer
	daemon.OpenLog(&b, slog.LevelDebug)
	log.Print("a secret of a destination")
	slog.Debug("ours")
	if got := b.String(); strings.Contains(got, "secret") || !strings.Contains(got, "ours") {
		t.Errorf("the log is %s", got)
	}
}
