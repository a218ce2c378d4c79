//! The packages that are there, from the output of `dpkg-query`.

use std::collections::BTreeMap;

/// The format that [`parse`] reads.
pub const FORMAT: &str = "${Package}\\t${Architecture}\\t${Version}\\t${db:Status-Abbrev}\\n";

/// How far a package is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PackageState {
    /// It is installed, and configured.
    Installed,
    /// It was removed, and its configuration files were not.
    Configs,
    /// A run of the package manager was interrupted, or has failed: it is unpacked at most.
    Broken,
}

/// A package that dpkg knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstalledPackage {
    /// Its version.
    pub version: String,
    /// How far it is there.
    pub state: PackageState,
    /// Whether it is held.
    pub is_held: bool,
    /// Whether it has to be unpacked again.
    pub needs_unpacking: bool,
}

/// All packages that dpkg knows, by name. One of another architecture than the first of its name is `NAME:ARCHITECTURE`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InstalledPackages(BTreeMap<String, InstalledPackage>);

impl InstalledPackages {
    /// Returns the version of a package that is there.
    #[must_use]
    pub fn version(&self, name: &str) -> Option<&str> {
        let package = self.get(name)?;
        (package.state != PackageState::Configs).then_some(package.version.as_str())
    }

    /// Returns a package.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&InstalledPackage> {
        self.0.get(name)
    }

    /// Whether a package is held.
    #[must_use]
    pub fn is_held(&self, name: &str) -> bool {
        self.get(name).is_some_and(|package| package.is_held)
    }

    /// The packages that an interrupted or failed run has left behind.
    pub fn broken(&self) -> impl Iterator<Item = (&str, &InstalledPackage)> {
        let all = self.0.iter().map(|(name, package)| (name.as_str(), package));
        all.filter(|(_, package)| package.state == PackageState::Broken)
    }
}

/// Reads the output of `dpkg-query --show` with [`FORMAT`]. Packages of which nothing is there are left out.
#[must_use]
pub fn parse(output: &str) -> InstalledPackages {
    let mut packages = BTreeMap::new();
    for line in output.lines() {
        let mut fields = line.split('\t');
        let (Some(name), Some(architecture), Some(version), Some(status)) =
            (fields.next(), fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let mut flags = status.chars();
        let (want, state) = (flags.next(), flags.next());
        let state = match state {
            Some('i') => PackageState::Installed,
            Some('c') => PackageState::Configs,
            Some('n') | None => continue,
            Some(_) => PackageState::Broken,
        };
        let package = InstalledPackage {
            version: version.to_owned(),
            state,
            is_held: want == Some('h'),
            needs_unpacking: flags.next() == Some('R'),
        };
        let full = format!("{name}:{architecture}");
        // What is there goes before what was there.
        let is_first = packages.get(name).is_none_or(|first: &InstalledPackage| {
            first.state == PackageState::Configs && state != PackageState::Configs
        });
        if is_first {
            packages.insert(name.to_owned(), package.clone());
        }
        packages.insert(full, package);
    }
    InstalledPackages(packages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_of_dpkg_query_is_read() {
        let packages = parse(
            "libc6\tamd64\t2.36-9+deb12u10\tii \nlibc6\ti386\t2.36-9+deb12u10\tii \nhello\tall\t1.0\thi \nold\tall\t1.0\trc \n\
             half\tall\t2.0\tiF \nworse\tall\t2.0\tiHR\nheld\tall\t\thn \nshort\tall\n\n",
        );
        assert_eq!(packages.version("libc6"), Some("2.36-9+deb12u10"));
        assert_eq!(packages.version("libc6:i386"), Some("2.36-9+deb12u10"));
        assert_eq!((packages.version("hello"), packages.is_held("hello")), (Some("1.0"), true));
        assert_eq!((packages.version("old"), packages.get("old").unwrap().state), (None, PackageState::Configs));
        assert_eq!((packages.get("held"), packages.get("short")), (None, None));
        let broken: Vec<(&str, bool)> = packages
            .broken()
            .filter(|(name, _)| !name.contains(':'))
            .map(|(name, of)| (name, of.needs_unpacking))
            .collect();
        assert_eq!(broken, [("half", false), ("worse", true)]);
    }
}
