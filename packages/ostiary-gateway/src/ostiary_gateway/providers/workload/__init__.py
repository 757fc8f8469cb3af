"""Sign-in of workloads, such as pods and CI jobs, with tokens signed by their platform."""
