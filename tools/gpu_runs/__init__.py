"""What tuning and comparing share: suites of cases, a process for every GPU, times, checks, tables."""
