package descent

// Reasons are all reasons, by the size of their table.
var Reasons = func() (all []Reason) {
	for r := range reasonCount {
		all = append(all, r)
	}
	return all
}()
