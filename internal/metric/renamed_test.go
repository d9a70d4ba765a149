package metric

import (
	"net/http"
	"net/http/httptest"
	"regexp"
	"testing"
)

// TestRenamed: a metric that got another name is shown under both for one version,
// with one value.
func TestRenamed(t *testing.T) {
	w := httptest.NewRecorder()
	New().Serve(w, httptest.NewRequest(http.MethodGet, "/metrics", nil), Now{Disk: Disk{Reserved: 40}})
	page := w.Body.String()
	value := func(name string) string {
		if m := regexp.MustCompile(`(?m)^` + name + `(?:\{.*\})? (\S+)$`).FindStringSubmatch(page); m != nil {
			return m[1]
		}
		return ""
	}
	for now, old := range renamed {
		if v := value(now); v == "" || v != value(old) {
			t.Errorf("%s shows %q, and %s %q", now, v, old, value(old))
		}
		if !regexp.MustCompile(`(?m)^# HELP ` + old + ` deprecated: ` + now + ` `).MatchString(page) {
			t.Errorf("%s does not say that %s replaces it", old, now)
		}
	}
}
