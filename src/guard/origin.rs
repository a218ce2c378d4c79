//! The origin of a connection, and which origins had a login lately.

use std::{
    collections::HashMap,
    fmt,
    net::{IpAddr, Ipv6Addr},
    time::{Duration, Instant},
};

/// How long an address is preferred after a login from there: hosts that lose their connection come back within
/// minutes, and a DHCP lease, after which the address may be another machine's, is usually longer than a day.
const RECENT: Duration = Duration::from_secs(24 * 3600);

/// The most addresses that are remembered: each host of a large fleet at an address of its own, and half as many again.
const REMEMBERED_MAX: usize = 16_384;

/// The origin of a connection: an address of IPv4, or a network of 64 bits of IPv6, all of which one machine may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin(IpAddr);

impl Origin {
    /// Returns the origin of `address`.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V4(address) => IpAddr::V4(address),
            IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64))),
        })
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            IpAddr::V4(address) => address.fmt(f),
            IpAddr::V6(address) => write!(f, "{address}/64"),
        }
    }
}

/// The origins of recent logins.
#[derive(Debug, Default)]
pub struct RecentLogins(HashMap<Origin, Instant>);

impl RecentLogins {
    /// Records a login.
    pub fn record(&mut self, origin: Origin, now: Instant) {
        if self.0.len() >= REMEMBERED_MAX && !self.0.contains_key(&origin) {
            self.0.retain(|_, at| now.saturating_duration_since(*at) < RECENT);
            if self.0.len() >= REMEMBERED_MAX {
                // The oldest are removed, enough at once to make this rare.
                let mut times: Vec<_> = self.0.values().copied().collect();
                let (_, limit, _) = times.select_nth_unstable(REMEMBERED_MAX / 8);
                let limit = *limit;
                self.0.retain(|_, at| *at > limit);
            }
        }
        self.0.insert(origin, now);
    }

    /// Whether there was a recent login from here.
    #[must_use]
    pub fn contains(&self, origin: Origin, now: Instant) -> bool {
        self.0.get(&origin).is_some_and(|at| now.saturating_duration_since(*at) < RECENT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(address: &str) -> Origin {
        Origin::of(address.parse().unwrap())
    }

    #[test]
    fn addresses_of_one_machine_are_one_origin() {
        for (one, other, same) in [
            ("192.0.2.1", "192.0.2.1", true),
            ("192.0.2.1", "192.0.2.2", false),
            ("192.0.2.1", "::ffff:192.0.2.1", true),
            ("2001:db8::1", "2001:db8::ffff:1:2:3", true),
            ("2001:db8::1", "2001:db8:0:1::1", false),
        ] {
            assert_eq!(origin(one) == origin(other), same, "{one} {other}");
        }
        assert_eq!(origin("2001:db8::7").to_string(), "2001:db8::/64");
        assert_eq!(origin("192.0.2.1").to_string(), "192.0.2.1");
    }

    #[test]
    fn login_is_recent_for_a_day() {
        let (start, mut logins) = (Instant::now(), RecentLogins::default());
        logins.record(origin("192.0.2.1"), start);
        assert!(logins.contains(origin("192.0.2.1"), start + RECENT / 2));
        assert!(!logins.contains(origin("192.0.2.1"), start + RECENT));
        assert!(!logins.contains(origin("192.0.2.2"), start));
    }

    #[test]
    fn oldest_logins_are_forgotten_when_there_are_too_many() {
        let (start, mut logins) = (Instant::now(), RecentLogins::default());
        let at = |number: usize| start + Duration::from_millis(number as u64);
        let numbered = |number: usize| Origin::of(IpAddr::V4((number as u32).into()));
        for number in 0..=REMEMBERED_MAX {
            logins.record(numbered(number), at(number));
        }
        let now = at(REMEMBERED_MAX);
        assert!(logins.0.len() <= REMEMBERED_MAX);
        assert!(!logins.contains(numbered(0), now));
        assert!(logins.contains(numbered(REMEMBERED_MAX), now));
        assert!(logins.contains(numbered(REMEMBERED_MAX / 2), now));
    }
}
