package daemon

import (
	"io"
	"log/slog"
	"math"
	"time"
)

// OpenLog has everybody log to w, from a level on. Packages that know only the logger
// of package log are silent. The HTTP client writes unexpected bytes of a destination
// there, which may be a secret of a routing rule.
func OpenLog(w io.Writer, level slog.Level) {
	slog.SetDefault(slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: plain})))
	slog.SetLogLoggerLevel(math.MinInt)
}

// plain writes durations as people read them.
func plain(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(a.Value.Duration().Round(time.Microsecond).String())
	}
	return a
}
