package mistake

// Clip bounds what an error message repeats of a caller's input.
func Clip(s string) string {
	const most = 80
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}
