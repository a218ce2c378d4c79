//! Why a package manager has failed, from its output.

use muster_topics::diagnostic::Diagnostic;

/// The longest explanation: it is part of a message.
const WHY_MAX_CHARS: usize = 600;

/// Why a run has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackageFault {
    /// The reason, for people.
    pub diagnostic: Diagnostic,
    /// Whether the same run may succeed later without a change of the spec.
    pub may_heal: bool,
}

/// What apt says, what that means, what to do about it, and whether it may heal.
const KNOWN: &[(&[&str], &str, Option<&str>, bool)] = &[
    (
        &["No space left on device"],
        "the disk is full",
        Some("free space; the interrupted change is repaired automatically"),
        true,
    ),
    (
        &[
            "is not signed",
            "NO_PUBKEY",
            "EXPKEYSIG",
            "BADSIG",
            "REVKEYSIG",
            "NODATA",
            "signatures couldn't be verified",
            "apt-key",
        ],
        "a repository has no valid signature, so nothing was taken from it",
        Some("compare its `key` with the one that signs it"),
        true,
    ),
    (
        &["Unable to locate package"],
        "no repository of this host has this package",
        Some("check its name, and that its repository is in `repositories`"),
        false,
    ),
    (
        &["was not found", "has no installation candidate"],
        "no repository of this host has this version",
        Some("`apt-cache policy NAME` on the host lists the versions"),
        false,
    ),
    (
        &[
            "Could not resolve",
            "Temporary failure resolving",
            "Could not connect",
            "Failed to fetch",
            "Connection timed out",
            "Connection refused",
            "Network is unreachable",
        ],
        "a repository cannot be reached",
        Some("check the network and the repository's `url`"),
        true,
    ),
    (&["unmet dependencies", "held broken packages"], "its dependencies cannot be satisfied", None, false),
    (&["Hash Sum mismatch", "unexpected size"], "a repository is being changed, or damaged", None, true),
    (&["Could not get lock"], "another program uses the package manager", None, true),
];

/// Explains a failure by the output of apt and dpkg.
#[must_use]
pub fn explain(output: &str) -> PackageFault {
    let mut said: Vec<&str> = Vec::new();
    let is_detail = |line: &str| {
        line.starts_with("E: ")
            || line.starts_with("W: GPG error")
            || line.starts_with("W: Failed to fetch")
            || line.starts_with("dpkg: error")
            || line.starts_with("dpkg: unrecoverable")
            || line.contains("Depends:")
    };
    let mut lines = output.lines().peekable();
    while let Some(line) = lines.next() {
        if !is_detail(line) {
            continue;
        }
        let line = line.trim().trim_start_matches("E: ").trim_start_matches("W: ");
        if !said.contains(&line) {
            said.push(line);
        }
        // dpkg says why in the next line.
        if line.starts_with("dpkg: error")
            && let Some(why) = lines.next_if(|line| line.starts_with(' '))
        {
            said.push(why.trim());
        }
    }
    // It sums up what was said before.
    if said.len() > 1 {
        said.retain(|line| !line.starts_with("Sub-process ") && !line.starts_with("Some index files failed"));
    }
    let is_said = |words: &&&str| output.contains(**words);
    let known = KNOWN.iter().find(|(words, ..)| words.iter().any(|word| is_said(&word)));
    let details = if said.is_empty() { last_line(output) } else { said.join("; ") };
    let details: String = details.chars().take(WHY_MAX_CHARS).collect();
    match known {
        Some((_, means, hint, may_heal)) => {
            let cause = format!("{details}: {means}");
            let hint = hint.map(str::to_owned);
            PackageFault { diagnostic: Diagnostic { cause, consequence: None, hint }, may_heal: *may_heal }
        }
        None => PackageFault { diagnostic: Diagnostic::new(details), may_heal: true },
    }
}

fn last_line(output: &str) -> String {
    output.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it gave no reason").trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_explained() {
        for (output, message, may_heal) in [
            (
                "Reading package lists...\nE: Unable to locate package nope\n",
                "Unable to locate package nope: no repository",
                false,
            ),
            (
                "Package hello-x is not available, but is referred to by another package.\n\nE: Version '9' for 'hello-x' was not found\n",
                "Version '9' for 'hello-x' was not found: no repository of this host has this version",
                false,
            ),
            (
                "W: GPG error: file:/repo ./ InRelease: Unknown error executing apt-key\nE: The repository 'file:/repo ./ InRelease' is not signed.\n",
                "The repository 'file:/repo ./ InRelease' is not signed.: a repository has no valid signature",
                true,
            ),
            (
                "Setting up bad-x (2.0) ...\nit asks\ndpkg: error processing package bad-x (--configure):\n installed bad-x package post-installation script subprocess returned error exit status 3\nErrors were encountered while processing:\n bad-x\nE: Sub-process /usr/bin/dpkg returned an error code (1)\n",
                "dpkg: error processing package bad-x (--configure):; installed bad-x package post-installation script subprocess returned error exit status 3",
                true,
            ),
            (
                "E: You don't have enough free space in /var/cache/apt/archives/.\ndpkg: error processing archive x.deb (--unpack):\n cannot copy extracted data for './x' to '/x.dpkg-new': failed to write (No space left on device)\n",
                "the disk is full",
                true,
            ),
            (
                "Err:1 http://127.0.0.1:1 ./ InRelease\n  Could not connect to 127.0.0.1:1\nE: Failed to fetch http://127.0.0.1:1/x\n",
                "cannot be reached",
                true,
            ),
            ("something else\n\n", "something else", true),
            ("", "it gave no reason", true),
        ] {
            let fault = explain(output);
            assert!(fault.diagnostic.cause.contains(message), "{message}: {fault:?}");
            assert_eq!(fault.may_heal, may_heal, "{fault:?}");
        }
    }
}
