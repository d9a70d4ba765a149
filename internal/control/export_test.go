package control

// Flags are the names of all flags.
var Flags = flags[:]

// Stale are the rows of the tables of the description that are of nothing.
func Stale() []string {
	schemas := newSchemas()
	for _, rt := range routes {
		rt.describe(schemas)
	}
	return schemas.Stale()
}
