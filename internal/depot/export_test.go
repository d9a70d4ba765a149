package depot

// SumsFile is sumsFile.
const SumsFile = sumsFile

// ParseSums returns the sums of parseStamps by path.
func ParseSums(raw []byte) map[string]string {
	all, _ := parseStamps(raw)
	sums := map[string]string{}
	for path, s := range all {
		sums[path] = s.Sum
	}
	return sums
}

// LearnMost is learnMost.
const LearnMost = learnMost
