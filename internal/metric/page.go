package metric

import (
	"context"
	"net/http"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/httpx"
)

// Page shows what the platform does and takes. It is about all workspaces: the
// caller must be an administrator of the first one, which is the operator's.
type Page struct {
	Metrics      *Metrics
	Authenticate func(*http.Request) (access.Caller, error)
	Operator     string // name of the first workspace
	Now          func(context.Context) Now
	// Others returns the metrics of other processes of the platform, as Text wrote
	// them. Nil: there are none.
	Others func(context.Context) ([][]byte, error)
}

func (p Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	caller, err := p.Authenticate(r)
	if err == nil && !caller.Operates(p.Operator) {
		err = doze.Errorf(doze.Forbidden, "metrics are for administrators of the workspace %s", p.Operator)
	}
	if err != nil {
		httpx.WriteError(w, r, err)
		return
	}
	if r.Method != http.MethodGet {
		w.Header().Set("Allow", http.MethodGet)
		httpx.WriteError(w, r, doze.Errorf(doze.Unsupported, "metrics can be read only"))
		return
	}
	if p.Others == nil {
		p.Metrics.Serve(w, r, p.Now(r.Context()))
		return
	}
	families, err := p.Families(r.Context())
	var text []byte
	if err == nil {
		text, err = write(sorted(families))
	}
	if err != nil {
		httpx.WriteError(w, r, err)
		return
	}
	w.Header().Set("Content-Type", string(expfmt.NewFormat(expfmt.TypeTextPlain)))
	_, _ = w.Write(text) // its reader is gone, then
}

// Families are everything that this process and the others count, by names.
func (p Page) Families(ctx context.Context) (map[string]*dto.MetricFamily, error) {
	own, err := p.Metrics.gatherer(p.Now(ctx)).Gather()
	if err != nil {
		return nil, err
	}
	all := map[string]*dto.MetricFamily{}
	if err := merge(all, own); err != nil || p.Others == nil {
		return all, err
	}
	others, err := p.Others(ctx)
	if err != nil {
		return nil, err
	}
	for _, text := range others {
		if err := mergeText(all, text); err != nil {
			return nil, err
		}
	}
	return all, nil
}
