package conformance

import "slices"

// probes lists the questions in the order in which they are asked; later ones use what earlier ones made.
func probes() []probe {
	return slices.Concat(commandProbes(), createProbes(), execProbes(), layoutProbes(), copyProbes(), policyProbes(), networkProbes(), secretProbes(), lifeProbes())
}
