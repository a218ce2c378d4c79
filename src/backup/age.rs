//! The file format of age, version 1 (<https://age-encryption.org/v1>), with keys of X25519: what is encrypted here opens
//! with the program `age`, and the other way round.
//!
//! A random file key is wrapped for each public key (X25519, HKDF-SHA-256, ChaCha20-Poly1305) in a header of text, which
//! has a MAC. The payload follows in chunks of 64 KiB, each sealed with its number and whether it is the last (STREAM).

use std::io::{self, Read, Write};

use base64::{Engine, engine::general_purpose::STANDARD_NO_PAD as BASE64};
use ring::{
    aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    hkdf, hmac,
};
use x25519_dalek::{PublicKey as X25519Public, StaticSecret};

use crate::{
    BackupError,
    key::{PrivateKey, PublicKey, random},
};

const VERSION: &str = "age-encryption.org/v1";
const ANY_VERSION: &str = "age-encryption.org/";
const STANZA: &str = "X25519";
const STANZA_INFO: &[u8] = b"age-encryption.org/v1/X25519";
const FILE_KEY_BYTES: usize = 16;
const TAG_BYTES: usize = 16;
const PAYLOAD_NONCE_BYTES: usize = 16;
/// The length of a chunk of the payload.
const CHUNK_BYTES: usize = 64 * 1024;
/// The length of a full line in the body of a stanza.
const COLUMNS: usize = 64;
/// The longest header that is read: some hundred keys.
const HEADER_MAX_BYTES: usize = 32 * 1024;

type FileKey = [u8; FILE_KEY_BYTES];

/// Derives 32 bytes with HKDF-SHA-256.
fn derived(secret: &[u8], salt: &[u8], info: &[u8]) -> [u8; 32] {
    let mut key = [0; 32];
    let pseudo_random = hkdf::Salt::new(hkdf::HKDF_SHA256, salt).extract(secret);
    let info = [info];
    let expanded = pseudo_random.expand(&info, hkdf::HKDF_SHA256);
    // It fails only for more than 255 blocks.
    let _ = expanded.and_then(|bytes| bytes.fill(&mut key));
    key
}

fn aead(key: &[u8; 32]) -> Result<LessSafeKey, BackupError> {
    // The length is right.
    let key = UnboundKey::new(&CHACHA20_POLY1305, key).map_err(|_| BackupError::Randomness)?;
    Ok(LessSafeKey::new(key))
}

/// The key that wraps the file key for one public key. `None` if the exchange has no secret: one of the keys is of low
/// order.
fn wrapping_key(
    shared: &x25519_dalek::SharedSecret,
    ephemeral: &X25519Public,
    public: &X25519Public,
) -> Option<[u8; 32]> {
    let salt = [ephemeral.as_bytes().as_slice(), public.as_bytes()].concat();
    shared.was_contributory().then(|| derived(shared.as_bytes(), &salt, STANZA_INFO))
}

/// Encrypts what is written to it, and passes it on. [`Encryptor::finish`] writes the end.
pub struct Encryptor<W: Write> {
    out: W,
    key: LessSafeKey,
    number: u64,
    chunk: Vec<u8>,
}

impl<W: Write> std::fmt::Debug for Encryptor<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Encryptor").field("number", &self.number).finish_non_exhaustive()
    }
}

impl<W: Write> Encryptor<W> {
    /// Writes the header for these public keys.
    ///
    /// # Errors
    /// If there is no public key, or it cannot be written.
    pub fn new(mut out: W, to: &[PublicKey]) -> Result<Self, BackupError> {
        if to.is_empty() {
            return Err(BackupError::NoRecipient);
        }
        let file_key: FileKey = random()?;
        let mut header = format!("{VERSION}\n");
        for public in to {
            header.push_str(&stanza(&file_key, public)?);
        }
        header.push_str("---");
        let tag = hmac::sign(&mac_key(&file_key), header.as_bytes());
        header.push_str(&format!(" {}\n", BASE64.encode(tag.as_ref())));
        let nonce: [u8; PAYLOAD_NONCE_BYTES] = random()?;
        out.write_all(header.as_bytes()).and_then(|()| out.write_all(&nonce)).map_err(BackupError::writing)?;
        let key = aead(&derived(&file_key, &nonce, b"payload"))?;
        Ok(Self { out, key, number: 0, chunk: Vec::with_capacity(CHUNK_BYTES + TAG_BYTES) })
    }

    fn put_chunk(&mut self, is_last: bool) -> io::Result<()> {
        let nonce = chunk_nonce(self.number, is_last);
        self.key
            .seal_in_place_append_tag(nonce, Aad::empty(), &mut self.chunk)
            .map_err(|_| io::Error::other("the payload is too long"))?;
        self.number += 1;
        self.out.write_all(&self.chunk)?;
        self.chunk.clear();
        Ok(())
    }

    /// Writes the last chunk.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn finish(mut self) -> io::Result<W> {
        self.put_chunk(true)?;
        self.out.flush()?;
        Ok(self.out)
    }
}

impl<W: Write> Write for Encryptor<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // A full chunk waits until it is known that it is not the last.
        if self.chunk.len() == CHUNK_BYTES && !bytes.is_empty() {
            self.put_chunk(false)?;
        }
        let count = bytes.len().min(CHUNK_BYTES - self.chunk.len());
        self.chunk.extend_from_slice(bytes.get(..count).unwrap_or_default());
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// The file key, wrapped for a public key.
fn stanza(file_key: &FileKey, public: &PublicKey) -> Result<String, BackupError> {
    let secret = StaticSecret::from(random::<32>()?);
    let ephemeral = X25519Public::from(&secret);
    let shared = secret.diffie_hellman(public.x25519());
    let key = wrapping_key(&shared, &ephemeral, public.x25519())
        .ok_or_else(|| BackupError::Key { what: "the public key", problem: "it cannot encrypt".to_owned() })?;
    let mut wrapped = file_key.to_vec();
    // The key is used once.
    aead(&key)?
        .seal_in_place_append_tag(Nonce::assume_unique_for_key([0; NONCE_LEN]), Aad::empty(), &mut wrapped)
        .map_err(|_| BackupError::Randomness)?;
    // 32 bytes are less than one line.
    Ok(format!("-> {STANZA} {}\n{}\n", BASE64.encode(ephemeral.as_bytes()), BASE64.encode(wrapped)))
}

fn mac_key(file_key: &FileKey) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, &derived(file_key, b"", b"header"))
}

fn chunk_nonce(number: u64, is_last: bool) -> Nonce {
    let mut nonce = [0; NONCE_LEN];
    // Eleven bytes of the number, and one that says whether it is the last.
    nonce[NONCE_LEN - 9..NONCE_LEN - 1].copy_from_slice(&number.to_be_bytes());
    nonce[NONCE_LEN - 1] = u8::from(is_last);
    Nonce::assume_unique_for_key(nonce)
}

/// Decrypts what is read through it.
pub struct Decryptor<R: Read> {
    input: R,
    key: LessSafeKey,
    number: u64,
    /// Bytes that were read and not decrypted.
    ahead: Vec<u8>,
    chunk: Vec<u8>,
    at: usize,
    is_over: bool,
}

impl<R: Read> std::fmt::Debug for Decryptor<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Decryptor").field("number", &self.number).finish_non_exhaustive()
    }
}

impl<R: Read> Decryptor<R> {
    /// Reads the header, and opens it with one of the keys.
    ///
    /// # Errors
    /// If it is no such file, is cut or damaged, or none of the keys opens it.
    pub fn new(mut input: R, keys: &[PrivateKey]) -> Result<Self, BackupError> {
        let header = Header::read(&mut input)?;
        if keys.is_empty() {
            return Err(BackupError::NoKey);
        }
        let mut opened = keys.iter().flat_map(|key| header.stanzas.iter().filter_map(|stanza| stanza.open(key)));
        let file_key = opened.next().ok_or(BackupError::WrongKey(header.stanzas.len()))?;
        hmac::verify(&mac_key(&file_key), header.text.as_bytes(), &header.mac)
            .map_err(|_| BackupError::Damaged("its header was modified".to_owned()))?;
        let mut nonce = [0; PAYLOAD_NONCE_BYTES];
        input.read_exact(&mut nonce).map_err(cut_or_unreadable)?;
        let key = aead(&derived(&file_key, &nonce, b"payload"))?;
        Ok(Self { input, key, number: 0, ahead: Vec::new(), chunk: Vec::new(), at: 0, is_over: false })
    }

    /// Decrypts the next chunk.
    fn next_chunk(&mut self) -> io::Result<()> {
        const SEALED_BYTES: usize = CHUNK_BYTES + TAG_BYTES;
        // One byte more tells whether it is the last.
        let wanted = u64::try_from(SEALED_BYTES + 1 - self.ahead.len()).unwrap_or_default();
        self.input.by_ref().take(wanted).read_to_end(&mut self.ahead)?;
        let is_last = self.ahead.len() <= SEALED_BYTES;
        let rest = if is_last { Vec::new() } else { self.ahead.split_off(SEALED_BYTES) };
        let mut sealed = std::mem::replace(&mut self.ahead, rest);
        let open = |mut sealed: Vec<u8>, is_last: bool| {
            let length =
                self.key.open_in_place(chunk_nonce(self.number, is_last), Aad::empty(), &mut sealed).ok()?.len();
            sealed.truncate(length);
            Some(sealed)
        };
        if sealed.len() < TAG_BYTES {
            return Err(BackupError::Truncated.into());
        }
        let copy = if is_last { sealed.clone() } else { Vec::new() };
        let Some(opened) = open(std::mem::take(&mut sealed), is_last) else {
            // It ends between two chunks, or within one: what is there of it cannot be told from something else.
            let is_cut = is_last && (copy.len() < SEALED_BYTES || open(copy, false).is_some());
            let damage = "a part of it was modified".to_owned();
            return Err(if is_cut { BackupError::Truncated } else { BackupError::Damaged(damage) }.into());
        };
        if opened.is_empty() && self.number > 0 {
            return Err(BackupError::Damaged("it has an empty chunk at its end".to_owned()).into());
        }
        (self.chunk, self.at, self.is_over) = (opened, 0, is_last);
        self.number += 1;
        Ok(())
    }
}

impl<R: Read> Read for Decryptor<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.at == self.chunk.len() && !self.is_over {
            self.next_chunk()?;
        }
        let left = self.chunk.get(self.at..).unwrap_or_default();
        let count = left.len().min(buffer.len());
        buffer[..count].copy_from_slice(&left[..count]);
        self.at += count;
        Ok(count)
    }
}

fn cut_or_unreadable(error: io::Error) -> BackupError {
    if error.kind() == io::ErrorKind::UnexpectedEof { BackupError::Truncated } else { BackupError::reading(error) }
}

/// A file key that is wrapped for one public key.
struct Stanza {
    ephemeral: X25519Public,
    wrapped: Vec<u8>,
}

impl Stanza {
    fn open(&self, key: &PrivateKey) -> Option<FileKey> {
        let shared = key.x25519().diffie_hellman(&self.ephemeral);
        let public = X25519Public::from(key.x25519());
        let key = wrapping_key(&shared, &self.ephemeral, &public)?;
        let mut wrapped = self.wrapped.clone();
        let nonce = Nonce::assume_unique_for_key([0; NONCE_LEN]);
        let file_key = aead(&key).ok()?.open_in_place(nonce, Aad::empty(), &mut wrapped).ok()?;
        (*file_key).try_into().ok()
    }
}

/// A header.
struct Header {
    stanzas: Vec<Stanza>,
    /// The text that has the MAC.
    text: String,
    mac: Vec<u8>,
}

impl Header {
    fn read(input: &mut impl Read) -> Result<Self, BackupError> {
        let mut lines = HeaderLines { input, left: HEADER_MAX_BYTES };
        let version = lines.first()?;
        if version != VERSION {
            let newer = version.starts_with(ANY_VERSION);
            return Err(BackupError::NotABackup(match newer {
                true => "its format is newer than this program's version of age",
                false => "it does not begin like one",
            }));
        }
        let (mut text, mut stanzas) = (format!("{version}\n"), Vec::new());
        let mut line = lines.next()?;
        loop {
            if let Some(mac) = line.strip_prefix("--- ") {
                text.push_str("---");
                let mac = BASE64.decode(mac).map_err(|_| damaged())?;
                return Ok(Self { stanzas, text, mac });
            }
            let words: Vec<String> =
                line.strip_prefix("-> ").ok_or_else(damaged)?.split(' ').map(str::to_owned).collect();
            text.push_str(&format!("{line}\n"));
            let mut body = String::new();
            loop {
                line = lines.next()?;
                text.push_str(&format!("{line}\n"));
                body.push_str(&line);
                if line.len() < COLUMNS {
                    break;
                }
            }
            line = lines.next()?;
            // Keys of other kinds are not for us.
            if let [kind, ephemeral] = words.as_slice()
                && kind == STANZA
            {
                let ephemeral = BASE64.decode(ephemeral).ok().and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
                let wrapped = BASE64.decode(&body).ok().filter(|body| body.len() == FILE_KEY_BYTES + TAG_BYTES);
                let (Some(ephemeral), Some(wrapped)) = (ephemeral, wrapped) else { return Err(damaged()) };
                stanzas.push(Stanza { ephemeral: ephemeral.into(), wrapped });
            }
        }
    }
}

fn damaged() -> BackupError {
    BackupError::Damaged("its header cannot be read".to_owned())
}

struct HeaderLines<'a, R> {
    input: &'a mut R,
    left: usize,
}

impl<R: Read> HeaderLines<'_, R> {
    /// The first line: of any other file, at most as many bytes as the version has.
    fn first(&mut self) -> Result<String, BackupError> {
        let mut start = vec![0; VERSION.len() + 1];
        self.input.read_exact(&mut start).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => BackupError::NotABackup("it is too short"),
            _ => BackupError::reading(error),
        })?;
        let line = String::from_utf8(start).map_err(|_| BackupError::NotABackup("it does not begin like one"))?;
        Ok(line.strip_suffix('\n').map(str::to_owned).unwrap_or(line))
    }

    fn next(&mut self) -> Result<String, BackupError> {
        let mut line = Vec::new();
        loop {
            let mut byte = [0];
            self.left = self.left.checked_sub(1).ok_or_else(damaged)?;
            self.input.read_exact(&mut byte).map_err(cut_or_unreadable)?;
            match byte {
                [b'\n'] => return String::from_utf8(line).map_err(|_| damaged()),
                [byte] => line.push(byte),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sealed(content: &[u8], to: &[PublicKey]) -> Vec<u8> {
        let mut encryptor = Encryptor::new(Vec::new(), to).unwrap();
        encryptor.write_all(content).unwrap();
        encryptor.finish().unwrap()
    }

    fn opened(file: &[u8], keys: &[PrivateKey]) -> Result<Vec<u8>, BackupError> {
        let mut content = Vec::new();
        let read = Decryptor::new(file, keys)?.read_to_end(&mut content);
        read.map_err(BackupError::reading).map(|_| content)
    }

    #[test]
    fn file_of_age_opens() {
        let file = base64::engine::general_purpose::STANDARD.decode(FILE_OF_AGE).unwrap();
        let key = "AGE-SECRET-KEY-1S4R25LFNRMCCUCQA6WZC40CAWCMATKQKADPVRZFQZLYNSFHS6G9QT3AMJ2".parse().unwrap();
        assert_eq!(opened(&file, &[key]).unwrap(), b"made by age");
    }

    const FILE_OF_AGE: &str = "YWdlLWVuY3J5cHRpb24ub3JnL3YxCi0+IFgyNTUxOSBRUTBkaks2M3k3aXNob0ZsZzNqdm90M05CRlcrUVRreEtMa3FB\
                               dkNDVkJZCm5kaU1yeGR0QmRsSmlVRVZlRHZQdmhqTG4xcHFPS2s2dWhZMGdXRTNnT0UKLS0tIDQ1M0NPSEk1ZEtlUlNZ\
                               dlR0VzZucEtFeUY2UmlMSGFTbzNvZmdRRU43T3cK+0MGwdiqVowBnE7HFubDyNzYmy+XgCuK0XFfpHt5p71XfcCJpxPM\
                               l1r9cg==";

    #[test]
    fn content_of_every_length_comes_back() {
        let (key, other) = (PrivateKey::generate().unwrap(), PrivateKey::generate().unwrap());
        let to = [other.public(), key.public()];
        for length in [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 2 * CHUNK_BYTES, 2 * CHUNK_BYTES + 7] {
            let content: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
            let file = sealed(&content, &to);
            for key in [&key, &other] {
                assert!(opened(&file, std::slice::from_ref(key)).unwrap() == content, "{length}");
            }
        }
    }

    #[test]
    fn wrong_and_missing_keys_are_told_apart() {
        let (key, other) = (PrivateKey::generate().unwrap(), PrivateKey::generate().unwrap());
        let file = sealed(b"x", &[key.public()]);
        assert!(matches!(opened(&file, std::slice::from_ref(&other)), Err(BackupError::WrongKey(1))));
        assert!(matches!(opened(&file, &[]), Err(BackupError::NoKey)));
        assert_eq!(opened(&file, &[other, key]).unwrap(), b"x");
        assert!(matches!(Encryptor::new(Vec::new(), &[]), Err(BackupError::NoRecipient)));
    }

    #[test]
    fn cut_file_is_refused_as_cut() {
        let key = PrivateKey::generate().unwrap();
        let file = sealed(&vec![7; 2 * CHUNK_BYTES + 100], &[key.public()]);
        let payload = file.len() - (2 * CHUNK_BYTES + 100 + 3 * TAG_BYTES);
        let keys = [key];
        let sealed_chunk = CHUNK_BYTES + TAG_BYTES;
        for end in
            (VERSION.len() + 1..payload + 40).chain((0..3).map(|n| payload + n * sealed_chunk)).chain([file.len() - 1])
        {
            let error = opened(&file[..end], &keys).unwrap_err();
            assert!(matches!(error, BackupError::Truncated), "{end} of {}: {error}", file.len());
        }
        for end in 0..VERSION.len() + 1 {
            assert!(matches!(opened(&file[..end], &keys), Err(BackupError::NotABackup(_))), "{end}");
        }
        assert!(opened(&[&file[..], b"more"].concat(), &keys).is_err());
    }

    #[test]
    fn other_files_are_no_backups() {
        let keys = [PrivateKey::generate().unwrap()];
        let newer = b"age-encryption.org/v2\n-> X25519 a\nb\n--- c\n";
        for other in [
            &b"SQLite format 3\0 and so on and on"[..],
            b"",
            b"\xff\xfe\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
            newer,
        ] {
            assert!(matches!(opened(other, &keys), Err(BackupError::NotABackup(_))), "{other:?}");
        }
        let endless = [b"age-encryption.org/v1\n-> X25519 ", vec![b'a'; 1 << 20].as_slice()].concat();
        assert!(matches!(opened(&endless, &keys), Err(BackupError::Damaged(_))));
    }

    proptest! {
        #[test]
        fn every_changed_bit_is_refused(length in 0..3 * CHUNK_BYTES, at in any::<proptest::sample::Index>(), bit in 0..8) {
            let key = PrivateKey::generate().unwrap();
            let mut file = sealed(&vec![1; length], &[key.public()]);
            let at = at.index(file.len());
            file[at] ^= 1_u8 << bit;
            prop_assert!(opened(&file, &[key]).is_err(), "bit {bit} of byte {at} of {}", file.len());
        }

        #[test]
        fn pieces_of_any_size_give_the_same(pieces in prop::collection::vec(0..40_000_usize, 0..12), step in 1..100_000_usize) {
            let key = PrivateKey::generate().unwrap();
            let mut encryptor = Encryptor::new(Vec::new(), &[key.public()]).unwrap();
            let mut content = Vec::new();
            for (number, length) in pieces.into_iter().enumerate() {
                let piece = vec![number as u8; length];
                encryptor.write_all(&piece).unwrap();
                content.extend(piece);
            }
            let file = encryptor.finish().unwrap();
            let (mut decryptor, mut read) = (Decryptor::new(file.as_slice(), &[key]).unwrap(), Vec::new());
            let mut buffer = vec![0; step];
            loop {
                match decryptor.read(&mut buffer).unwrap() {
                    0 => break,
                    count => read.extend_from_slice(&buffer[..count]),
                }
            }
            prop_assert!(read == content);
        }

        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let keys = [PrivateKey::generate().unwrap()];
            let _ = opened(&bytes, &keys);
            let _ = opened(&[b"age-encryption.org/v1\n", bytes.as_slice()].concat(), &keys);
            let text = String::from_utf8_lossy(&bytes).replace('\u{fffd}', "\n-> X25519 ");
            let _ = opened(&[b"age-encryption.org/v1\n", text.as_bytes()].concat(), &keys);
        }
    }
}
