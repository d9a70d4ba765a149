package control

// Route is a row of the route table.
type Route struct{ Method, Pattern, Scope string }

// Routes is the route table.
func Routes() (all []Route) {
	for _, rt := range routes {
		all = append(all, Route{rt.method, rt.pattern, rt.scope})
	}
	return all
}
