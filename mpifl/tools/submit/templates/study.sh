
# Task $$task of ${tasks} has every ${tasks}-th run of the study. Completed runs are skipped; interrupted ones continue.
command=(${command} --part "$$task/${tasks}")
