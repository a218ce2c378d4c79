//! Users with a name and a password, and how passwords are checked.
//!
//! A users file has a line `NAME:HASH` for each user. NAME is the common name that a certificate would have, so that a
//! user has the permissions of that identity. HASH is PBKDF2-HMAC-SHA256 in the usual form,
//! `$pbkdf2-sha256$i=ROUNDS$SALT$HASH`, salt and hash in base64 without padding; passlib's variant is accepted
//! too. Empty lines, and lines that begin with `#`, are ignored.
//!
//! **Invariant: timing does not reveal whether a user exists.** An unknown one costs what a wrong password does.
//!
//! A password that was right once is recognised without its rounds, by its HMAC under a secret key of this process: clients that
//! reconnect, many at once after an outage, need not queue for the processor. So is a recent wrong
//! one, because a program with a wrong password retries it again and again.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    fmt,
    hash::{BuildHasher, RandomState},
    num::NonZeroU32,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use base64::{Engine, engine::general_purpose::STANDARD_NO_PAD};
use muster_guard::Origin;
use muster_topics::role::Identity;
use ring::{
    hmac,
    pbkdf2::{self, PBKDF2_HMAC_SHA256},
    rand::{SecureRandom, SystemRandom},
};
use tokio::task;

use crate::password_queue::Checks;

/// The rounds of a new password's hash: OWASP's recommendation for PBKDF2-HMAC-SHA256. A check takes a fifth of a
/// second of a core.
const ROUNDS: NonZeroU32 = NonZeroU32::new(600_000).unwrap();

/// The most rounds: a check must not take minutes.
const ROUNDS_MAX: u32 = 10_000_000;

/// The length of salt and hash in a new line, and the least in one that is read.
const SALT_BYTES: usize = 16;
const SALT_MIN_BYTES: usize = 8;
const HASH_BYTES: usize = 32;
const HASH_MIN_BYTES: usize = 16;

/// The most: there is no reason for more, and each 32 bytes of hash cost all rounds again.
const FIELD_MAX_BYTES: usize = 64;

/// Wrong passwords that are remembered.
const WRONG_MAX: usize = 1_024;

/// A line of a users file that cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the users file: {what}")]
pub struct UsersError {
    /// The line, from 1.
    pub line: usize,
    /// The problem.
    pub what: String,
}

/// The users that may connect with a password.
#[derive(Clone)]
pub struct Users(Arc<UsersState>);

struct UsersState {
    users: HashMap<String, PasswordUser>,
    /// What the password of an unknown user is checked against.
    decoy: PasswordHash,
    checks: Checks,
    /// The key by which passwords are recognised again; `None` if the system gave no random numbers.
    key: Option<hmac::Key>,
    wrong: Mutex<WrongPasswords>,
    /// Names are distinguished by their hashes, which nobody outside can choose.
    names: RandomState,
}

/// Names with wrong passwords, by their HMAC; the oldest are removed.
#[derive(Default)]
struct WrongPasswords {
    tags: HashSet<Vec<u8>>,
    order: VecDeque<Vec<u8>>,
}

impl WrongPasswords {
    fn add(&mut self, tag: &hmac::Tag) {
        if self.tags.insert(tag.as_ref().to_vec()) {
            self.order.push_back(tag.as_ref().to_vec());
        }
        if self.order.len() > WRONG_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.tags.remove(&oldest);
        }
    }
}

/// Too many passwords wait to be checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooManyChecks;

/// The number of concurrent checks: half of the cores are for connected clients.
fn at_once() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| (cores.get() / 2).max(1))
}

struct PasswordUser {
    identity: Identity,
    hash: PasswordHash,
    /// The right password, once it was seen.
    known: OnceLock<hmac::Tag>,
}

struct PasswordHash {
    rounds: NonZeroU32,
    salt: Vec<u8>,
    hash: Vec<u8>,
}

impl fmt::Debug for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Users").field("count", &self.0.users.len()).finish_non_exhaustive()
    }
}

impl Users {
    /// Parses a users file.
    ///
    /// # Errors
    /// If a line is malformed, names no identity of the fleet, or repeats one.
    pub fn parse(text: &str) -> Result<Self, UsersError> {
        let mut users = HashMap::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let refuse = |what| UsersError { line: index + 1, what };
            let (name, user) = user(line).map_err(refuse)?;
            if users.insert(name.to_owned(), user).is_some() {
                return Err(refuse(format!("{name} has a line already")));
            }
        }
        // All lines that are made here take the same time.
        let rounds = users.values().map(|user: &PasswordUser| user.hash.rounds).max().unwrap_or(ROUNDS);
        let decoy = PasswordHash { rounds, salt: vec![0; SALT_BYTES], hash: vec![0; HASH_BYTES] };
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()).ok();
        Ok(Self(Arc::new(UsersState {
            users,
            decoy,
            checks: Checks::new(at_once()),
            key,
            wrong: Mutex::default(),
            names: RandomState::new(),
        })))
    }

    /// Whether an identity has a password.
    pub(crate) fn contains(&self, identity: &Identity) -> bool {
        self.0.users.values().any(|user| user.identity == *identity)
    }

    /// Returns the identity, if the password is right. It takes long: see [`Users::admit`].
    pub(crate) fn check(&self, name: &str, password: &[u8]) -> Option<Identity> {
        let user = self.0.users.get(name);
        let hash = user.map_or(&self.0.decoy, |user| &user.hash);
        let is_right = pbkdf2::verify(PBKDF2_HMAC_SHA256, hash.rounds, &hash.salt, password, &hash.hash).is_ok();
        let user = user.filter(|_| is_right)?;
        if let Some(key) = &self.0.key {
            user.known.get_or_init(|| hmac::sign(key, password));
        }
        Some(user.identity.clone())
    }

    /// Returns what is known of the password: the identity if it is right, `None` inside if it is wrong; or nothing.
    fn recall(&self, name: &str, password: &[u8]) -> Option<Option<Identity>> {
        let key = self.0.key.as_ref()?;
        let user = self.0.users.get(name);
        if let Some(user) = user
            && let Some(known) = user.known.get()
            && hmac::verify(key, password, known.as_ref()).is_ok()
        {
            return Some(Some(user.identity.clone()));
        }
        let is_wrong = self.wrong().tags.contains(wrong_tag(key, name, password).as_ref());
        is_wrong.then_some(None)
    }

    fn wrong(&self) -> std::sync::MutexGuard<'_, WrongPasswords> {
        self.0.wrong.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the identity, if the password is right: at once if it is known, or else after a check in turn, on a
    /// blocking thread. A dropped caller leaves the queue.
    pub(crate) async fn admit(
        &self,
        origin: Origin,
        name: &str,
        password: &[u8],
    ) -> Result<Option<Identity>, TooManyChecks> {
        if let Some(known) = self.recall(name, password) {
            return Ok(known);
        }
        let turn = self.0.checks.turn((origin, self.0.names.hash_one(name))).await.ok_or(TooManyChecks)?;
        // If many came at once with the same password, the first check has the answer.
        if let Some(known) = self.recall(name, password) {
            return Ok(known);
        }
        let (users, name, password) = (self.clone(), name.to_owned(), password.to_owned());
        let check = move || {
            let found = users.check(&name, &password);
            if let (None, Some(key)) = (&found, &users.0.key) {
                users.wrong().add(&wrong_tag(key, &name, &password));
            }
            // A check continues without its caller, so its turn ends here.
            turn.found(found.is_some());
            found
        };
        Ok(task::spawn_blocking(check).await.ok().flatten())
    }
}

/// Returns the tag of a wrong password, which no other name and password have.
fn wrong_tag(key: &hmac::Key, name: &str, password: &[u8]) -> hmac::Tag {
    let mut context = hmac::Context::with_key(key);
    context.update(&(name.len() as u64).to_be_bytes());
    context.update(name.as_bytes());
    context.update(password);
    context.sign()
}

/// Returns the line of a users file for a name and password.
///
/// # Errors
/// If the name is not of the fleet, the password is empty, or randomness is not available.
pub fn password_line(name: &str, password: &[u8]) -> Result<String, String> {
    line(name, password, ROUNDS)
}

fn line(name: &str, password: &[u8], rounds: NonZeroU32) -> Result<String, String> {
    let identity: Identity = name.parse().map_err(|error: muster_topics::role::IdentityError| error.to_string())?;
    if password.is_empty() {
        return Err("the password is empty".to_owned());
    }
    let mut salt = [0; SALT_BYTES];
    SystemRandom::new().fill(&mut salt).map_err(|_| "the system provides no randomness".to_owned())?;
    let mut hash = [0; HASH_BYTES];
    pbkdf2::derive(PBKDF2_HMAC_SHA256, rounds, &salt, password, &mut hash);
    let base64 = |bytes: &[u8]| STANDARD_NO_PAD.encode(bytes);
    Ok(format!("{identity}:$pbkdf2-sha256$i={rounds}${}${}", base64(&salt), base64(&hash)))
}

fn user(line: &str) -> Result<(&str, PasswordUser), String> {
    let (name, hash) = line.split_once(':').ok_or("expected NAME:HASH")?;
    let identity = name.parse().map_err(|error: muster_topics::role::IdentityError| error.to_string())?;
    Ok((name, PasswordUser { identity, hash: self::hash(hash)?, known: OnceLock::new() }))
}

fn hash(text: &str) -> Result<PasswordHash, String> {
    let mut parts = text.split('$');
    let (Some(""), Some("pbkdf2-sha256"), Some(rounds), Some(salt), Some(hash), None) =
        (parts.next(), parts.next(), parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err("expected a hash of the form $pbkdf2-sha256$i=ROUNDS$SALT$HASH".to_owned());
    };
    // Other programs write the length of the hash after the rounds; it is evident.
    let rounds = rounds.strip_prefix("i=").unwrap_or(rounds).split(',').next().unwrap_or_default();
    let rounds = rounds
        .parse()
        .ok()
        .filter(|rounds: &NonZeroU32| rounds.get() <= ROUNDS_MAX)
        .ok_or_else(|| format!("its rounds must be a number from 1 to {ROUNDS_MAX}"))?;
    let field = |name: &str, text: &str, min: usize| {
        // passlib writes a dot for a plus.
        let bytes = STANDARD_NO_PAD.decode(text.trim_end_matches('=').replace('.', "+"));
        bytes
            .ok()
            .filter(|bytes| (min..=FIELD_MAX_BYTES).contains(&bytes.len()))
            .ok_or_else(|| format!("its {name} must be {min} to {FIELD_MAX_BYTES} bytes in base64"))
    };
    Ok(PasswordHash { rounds, salt: field("salt", salt, SALT_MIN_BYTES)?, hash: field("hash", hash, HASH_MIN_BYTES)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HOST: &str = "0e2c1a4e-6a61-4a1c-9d0f-0d6d5a8f1f52";
    const FEW: NonZeroU32 = NonZeroU32::new(3).unwrap();

    #[test]
    fn right_password_authenticates() {
        let file = format!(
            "# users\n\n{}\n  {}\r\n",
            line(HOST, b"a host's", FEW).unwrap(),
            line("operator-anna", "gr\u{fc}\u{df}e".as_bytes(), FEW).unwrap()
        );
        let users = Users::parse(&file).unwrap();
        for (name, password, identity) in [
            (HOST, "a host's", Some(HOST)),
            ("operator-anna", "gr\u{fc}\u{df}e", Some("operator-anna")),
            ("operator-anna", "a host's", None),
            ("operator-anna", "", None),
            ("operator-berta", "a host's", None),
            ("", "", None),
        ] {
            let found = users.check(name, password.as_bytes()).map(|identity| identity.to_string());
            assert_eq!(found.as_deref(), identity, "{name} {password}");
        }
    }

    #[test]
    fn a_right_password_is_known_again_and_no_other() {
        let file = [line(HOST, b"a host's", FEW).unwrap(), line("operator-anna", b"anna's", FEW).unwrap()].join("\n");
        let users = Users::parse(&file).unwrap();
        assert_eq!(users.recall(HOST, b"a host's"), None, "nobody has been in yet");
        assert_eq!(users.check(HOST, b"anna's"), None);
        assert_eq!(users.recall(HOST, b"anna's"), None, "nobody has waited for it");
        let identity = users.check(HOST, b"a host's");
        assert!(identity.is_some());
        assert_eq!(users.recall(HOST, b"a host's"), Some(identity));
        for (name, password) in [(HOST, "anna's"), (HOST, ""), ("operator-anna", "a host's"), ("operator-berta", "")] {
            assert_eq!(users.recall(name, password.as_bytes()), None, "{name} {password}");
        }
    }

    #[tokio::test]
    async fn wrong_password_is_known_again_under_its_name_alone() {
        let file = [line(HOST, b"a host's", FEW).unwrap(), line("operator-anna", b"anna's", FEW).unwrap()].join("\n");
        let users = Users::parse(&file).unwrap();
        let origin = Origin::of([127, 0, 0, 1].into());
        for name in [HOST, "operator-nobody"] {
            assert_eq!(users.admit(origin, name, b"anna's").await, Ok(None));
            assert_eq!(users.recall(name, b"anna's"), Some(None));
        }
        assert_eq!(users.recall("operator-anna", b"anna's"), None);
        let anna = users.admit(origin, "operator-anna", b"anna's").await.unwrap();
        assert_eq!(anna, Some("operator-anna".parse().unwrap()));
        // The memory is bounded, and a right password is never mistaken for a wrong one.
        for guess in 0..=WRONG_MAX {
            users.wrong().add(&wrong_tag(users.0.key.as_ref().unwrap(), HOST, &guess.to_be_bytes()));
        }
        assert_eq!(users.wrong().tags.len(), WRONG_MAX);
        assert_eq!(users.recall(HOST, b"anna's"), None);
        assert_eq!(users.recall("operator-anna", b"anna's"), Some(anna));
    }

    #[test]
    fn hashes_of_passlib_are_accepted() {
        // Computed with Python's hashlib.pbkdf2_hmac("sha256", b"password", b"saltsaltsaltsalt", ROUNDS).
        for hash in [
            "i=1000$c2FsdHNhbHRzYWx0c2FsdA$8nX7hwFEzIB8aPajJTYK8weHQc5Ngz0pFVAKvSu4jQA",
            "i=1000,l=32$c2FsdHNhbHRzYWx0c2FsdA$8nX7hwFEzIB8aPajJTYK8weHQc5Ngz0pFVAKvSu4jQA",
            "1000$c2FsdHNhbHRzYWx0c2FsdA==$8nX7hwFEzIB8aPajJTYK8weHQc5Ngz0pFVAKvSu4jQA=",
            "1002$c2FsdHNhbHRzYWx0c2FsdA$OreVxz/td5.AB/etjMt1z8iqZ2wvpNM82T0HI7vtH1g",
        ] {
            let users = Users::parse(&format!("operator-anna:$pbkdf2-sha256${hash}")).unwrap();
            assert!(users.check("operator-anna", b"password").is_some(), "{hash}");
            assert!(users.check("operator-anna", b"passwore").is_none(), "{hash}");
        }
    }

    #[test]
    fn unknown_user_takes_as_long_as_known_one() {
        let rounds = NonZeroU32::new(7_000).unwrap();
        let users = Users::parse(&line("operator-anna", b"x", rounds).unwrap()).unwrap();
        let decoy = &users.0.decoy;
        assert_eq!((decoy.rounds, decoy.salt.len(), decoy.hash.len()), (rounds, SALT_BYTES, HASH_BYTES));
    }

    #[test]
    fn invalid_lines_are_named() {
        let good = line("operator-anna", b"x", FEW).unwrap();
        let check = |text: &str, line: usize, part: &str| {
            let error = Users::parse(text).unwrap_err();
            assert_eq!(error.line, line, "{text}");
            assert!(error.what.contains(part), "{error}");
        };
        check("anna", 1, "NAME:HASH");
        check("\n#\nroot:x", 3, "neither a host's id");
        check("operator-anna:x", 1, "$pbkdf2-sha256$");
        check("operator-anna:$6$abc$def", 1, "$pbkdf2-sha256$");
        check(&format!("{good}\n{good}"), 2, "already");
        check(&good.replace("i=3", "i=0"), 1, "rounds");
        check(&good.replace("i=3", "i=10000001"), 1, "rounds");
        check("operator-anna:$pbkdf2-sha256$i=3$c2FsdA$aaaaaaaaaaaaaaaaaaaaaaaa", 1, "salt");
        check("operator-anna:$pbkdf2-sha256$i=3$aaaaaaaaaaaaaaaa$!", 1, "hash");
        check(&format!("{good}$"), 1, "form");
    }

    #[test]
    fn a_line_needs_a_name_and_a_password() {
        assert!(password_line("root", b"x").unwrap_err().contains("neither"));
        assert!(password_line("operator-anna", b"").unwrap_err().contains("empty"));
        assert_ne!(line("operator-anna", b"x", FEW), line("operator-anna", b"x", FEW));
    }

    #[test]
    fn passwords_are_never_printed() {
        let file = line("operator-anna", b"x", FEW).unwrap();
        assert_eq!(format!("{:?}", Users::parse(&file).unwrap()), "Users { count: 1, .. }");
    }

    proptest! {
        #[test]
        fn no_users_file_panics(text in "(operator-a:|[a-z]{3}:)?(\\$pbkdf2-sha256)?(\\$(i=)?[0-9,l=]{0,12}){0,2}[$A-Za-z0-9+/.=\n]{0,80}") {
            let _ = Users::parse(&text);
        }
    }
}
