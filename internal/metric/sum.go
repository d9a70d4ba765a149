package metric

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Text returns everything that this process counts, and what is known now, in the
// text format of Prometheus.
func (m *Metrics) Text(is Now) ([]byte, error) {
	families, err := m.gatherer(is).Gather()
	if err != nil {
		return nil, err
	}
	return write(families)
}

func write(families []*dto.MetricFamily) ([]byte, error) {
	var out bytes.Buffer
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&out, f); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), nil
}

// Sum returns the metrics of several processes as if one process had counted all of
// it. Each text is in the text format of Prometheus.
func Sum(texts ...[]byte) ([]byte, error) {
	all := map[string]*dto.MetricFamily{}
	for _, text := range texts {
		if err := mergeText(all, text); err != nil {
			return nil, err
		}
	}
	return write(sorted(all))
}

func sorted(families map[string]*dto.MetricFamily) (all []*dto.MetricFamily) {
	for _, name := range slices.Sorted(maps.Keys(families)) {
		all = append(all, families[name])
	}
	return all
}

// mergeText adds the metrics of another process.
func mergeText(all map[string]*dto.MetricFamily, text []byte) error {
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return fmt.Errorf("the metrics of another process cannot be read: %w", err)
	}
	return merge(all, slices.Collect(maps.Values(families)))
}

// merge adds families to those that are there, by their names.
func merge(all map[string]*dto.MetricFamily, families []*dto.MetricFamily) error {
	for _, f := range families {
		if all[f.GetName()] == nil {
			all[f.GetName()] = f
		} else if err := add(all[f.GetName()], f); err != nil {
			return err
		}
	}
	return nil
}

// add adds one family to another one of the same name.
func add(to, more *dto.MetricFamily) error {
	if to.GetType() != more.GetType() {
		return fmt.Errorf("the metric %s is a %s in one process, and a %s in another", to.GetName(), to.GetType(), more.GetType())
	}
	known := map[string]*dto.Metric{}
	for _, m := range to.Metric {
		known[labels(m)] = m
	}
	for _, m := range more.Metric {
		if was := known[labels(m)]; was != nil {
			addMetric(was, m)
			continue
		}
		to.Metric = append(to.Metric, m)
	}
	return nil
}

// labels name a metric of a family.
func labels(m *dto.Metric) string {
	var all []string
	for _, l := range m.Label {
		all = append(all, fmt.Sprintf("%q=%q", l.GetName(), l.GetValue()))
	}
	slices.Sort(all)
	return strings.Join(all, ",")
}

// addMetric adds one metric to another one of the same labels. Quantiles of two
// processes cannot be added: those of the first one stay.
func addMetric(to, more *dto.Metric) {
	switch {
	case to.Counter != nil && more.Counter != nil:
		to.Counter.Value = new(to.Counter.GetValue() + more.Counter.GetValue())
	case to.Gauge != nil && more.Gauge != nil:
		to.Gauge.Value = new(to.Gauge.GetValue() + more.Gauge.GetValue())
	case to.Untyped != nil && more.Untyped != nil:
		to.Untyped.Value = new(to.Untyped.GetValue() + more.Untyped.GetValue())
	case to.Histogram != nil && more.Histogram != nil:
		addHistogram(to.Histogram, more.Histogram)
	case to.Summary != nil && more.Summary != nil:
		to.Summary.SampleCount = new(to.Summary.GetSampleCount() + more.Summary.GetSampleCount())
		to.Summary.SampleSum = new(to.Summary.GetSampleSum() + more.Summary.GetSampleSum())
	}
}

func addHistogram(to, more *dto.Histogram) {
	to.SampleCount = new(to.GetSampleCount() + more.GetSampleCount())
	to.SampleSum = new(to.GetSampleSum() + more.GetSampleSum())
	counts := map[float64]uint64{}
	for _, b := range more.Bucket {
		counts[b.GetUpperBound()] = b.GetCumulativeCount()
	}
	for _, b := range to.Bucket {
		b.CumulativeCount = new(b.GetCumulativeCount() + counts[b.GetUpperBound()])
	}
}
