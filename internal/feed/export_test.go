package feed

// KeyReadersMax is how many streams one credential may have.
const KeyReadersMax = keyReadersMax
