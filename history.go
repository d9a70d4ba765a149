package doze

// History is what a platform did and took over a time, in steps of equal length.
type History struct {
	From Time `json:"from"` // when the first step begins
	To   Time `json:"to"`   // when the last step ends
	Step int  `json:"step"` // the length of a step, in seconds

	Series []HistorySeries `json:"series"`
}

// HistorySeries are the values of one number.
type HistorySeries struct {
	Name string `json:"name"`
	// Unit is seconds, bytes or empty. Without a unit, the values count something.
	Unit   string            `json:"unit"`
	Labels map[string]string `json:"labels,omitempty"`
	// Values has one value for each step, oldest first. A value that nobody recorded
	// is null, as is a latency without a wake or create.
	Values []*float64 `json:"values"`
}
