//! Packs a batch's text: zlib with a dictionary that both ends have (RFC 1950, `FDICT`). Names of measurements,
//! tags and fields are most of a small batch; the dictionary has the agents' names, which then cost a few bits each. Any other
//! text packs as well, with less effect.
//!
//! A packed batch identifies its dictionary by the Adler-32 of it, as zlib does, so that there may be others later. Any zlib
//! reads it: in Python, `zlib.decompressobj(zdict=open("metric-dictionary-1.txt", "rb").read()).decompress(payload)`.
//!
//! **Invariant: a dictionary never changes.** A new one is added beside it, because batches wait in agents' stores for days.

use std::io::{self, Read};

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status, read::GzDecoder};

use super::{BatchError, UNPACKED_MAX_BYTES};

/// The dictionary: typical text of a batch of this version; the most frequent text is at the end, where references are
/// shortest.
const DICTIONARY: &[u8] = include_bytes!("../../schema/metric-dictionary-1.txt");

/// The first two bytes: deflate with a window of 32 KiB, best compression, a dictionary; a multiple of 31.
const HEAD: [u8; 2] = [0x78, 0xf9];
/// How much is decompressed at a time.
const STEP_BYTES: usize = 16 * 1024;

/// Compresses a batch's text.
#[must_use]
pub fn pack(text: &str) -> Vec<u8> {
    let mut packed = HEAD.to_vec();
    packed.extend(adler32(DICTIONARY).to_be_bytes());
    let mut deflate = Compress::new(Compression::best(), false);
    // The output for the dictionary is discarded; a flushed stream continues at a byte boundary, with its history.
    feed(&mut deflate, DICTIONARY, FlushCompress::Sync, &mut Vec::new());
    feed(&mut deflate, text.as_bytes(), FlushCompress::Finish, &mut packed);
    packed.extend(adler32(text.as_bytes()).to_be_bytes());
    packed
}

/// Compresses all of `bytes`.
fn feed(deflate: &mut Compress, bytes: &[u8], flush: FlushCompress, out: &mut Vec<u8>) {
    let began = deflate.total_in();
    loop {
        let done = usize::try_from(deflate.total_in() - began).unwrap_or(usize::MAX);
        let rest = bytes.get(done..).unwrap_or_default();
        // With some extra room: incompressible data becomes a few bytes longer.
        out.reserve(rest.len() + rest.len() / 64 + 64);
        let room = out.capacity() - out.len();
        let before = deflate.total_out();
        // The only error is the use of a stream after its end.
        let status = deflate.compress_vec(rest, out, flush);
        let written = usize::try_from(deflate.total_out() - before).unwrap_or(usize::MAX);
        match status {
            // A flush is complete if there is room left after it.
            Ok(Status::Ok) if rest.is_empty() && flush == FlushCompress::Sync && written < room => return,
            Ok(Status::Ok) if !rest.is_empty() || written > 0 => {}
            Ok(Status::Ok | Status::BufError | Status::StreamEnd) | Err(_) => return,
        }
    }
}

/// Returns the text of a batch: compressed, compressed with gzip, or plain.
pub(super) fn unpack(bytes: &[u8]) -> Result<String, BatchError> {
    let text = match bytes {
        // As other programs may.
        [0x1f, 0x8b, ..] => limited(GzDecoder::new(bytes))?,
        [0x78, flags, packed @ ..] if flags & 0x20 != 0 && (0x7800 + u16::from(*flags)) % 31 == 0 => {
            with_dictionary(packed)?
        }
        _ => limited(bytes)?,
    };
    String::from_utf8(text).map_err(|_| io::Error::other("it is not text").into())
}

fn limited(from: impl Read) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    from.take(UNPACKED_MAX_BYTES as u64 + 1).read_to_end(&mut text)?;
    if text.len() > UNPACKED_MAX_BYTES { Err(too_long()) } else { Ok(text) }
}

fn too_long() -> io::Error {
    io::Error::other(format!("more than {UNPACKED_MAX_BYTES} bytes"))
}

/// Decompresses what follows the first two bytes of a zlib stream with a dictionary.
fn with_dictionary(packed: &[u8]) -> Result<Vec<u8>, BatchError> {
    let short = || io::Error::from(io::ErrorKind::UnexpectedEof);
    let (dictionary, packed) = packed.split_first_chunk().ok_or_else(short)?;
    let dictionary = u32::from_be_bytes(*dictionary);
    if dictionary != adler32(DICTIONARY) {
        return Err(BatchError::Dictionary(dictionary));
    }
    let mut inflate = Decompress::new(false);
    begin(&mut inflate)?;
    let began = inflate.total_in();
    let mut text = Vec::new();
    loop {
        let done = usize::try_from(inflate.total_in() - began).unwrap_or(usize::MAX);
        let rest = packed.get(done..).unwrap_or_default();
        text.reserve(STEP_BYTES);
        let before = (inflate.total_in(), inflate.total_out());
        let status = inflate.decompress_vec(rest, &mut text, FlushDecompress::None).map_err(io::Error::from)?;
        if text.len() > UNPACKED_MAX_BYTES {
            return Err(too_long().into());
        }
        if status == Status::StreamEnd {
            break;
        }
        if before == (inflate.total_in(), inflate.total_out()) {
            return Err(short().into());
        }
    }
    let done = usize::try_from(inflate.total_in() - began).unwrap_or(usize::MAX);
    let sum: [u8; 4] = packed.get(done..).unwrap_or_default().try_into().map_err(|_| short())?;
    if u32::from_be_bytes(sum) == adler32(&text) {
        Ok(text)
    } else {
        Err(io::Error::other("its checksum is wrong").into())
    }
}

/// Gives a stream the dictionary, as if it began with a stored block: later references point into that.
fn begin(inflate: &mut Decompress) -> io::Result<()> {
    let length = u16::try_from(DICTIONARY.len()).map_err(io::Error::other)?;
    let mut block = vec![0];
    block.extend(length.to_le_bytes());
    block.extend((!length).to_le_bytes());
    block.extend(DICTIONARY);
    let mut out = Vec::with_capacity(DICTIONARY.len() + 1);
    inflate.decompress_vec(&block, &mut out, FlushDecompress::None)?;
    if out == DICTIONARY { Ok(()) } else { Err(io::Error::other("the dictionary cannot be loaded")) }
}

/// RFC 1950, section 8.2.
fn adler32(bytes: &[u8]) -> u32 {
    const MODULUS: u32 = 65_521;
    /// As many bytes as 32 bits can sum before a reduction is needed.
    const PIECE: usize = 5_552;
    let (mut a, mut b) = (1_u32, 0_u32);
    for piece in bytes.chunks(PIECE) {
        for byte in piece {
            a += u32::from(*byte);
            b += a;
        }
        (a, b) = (a % MODULUS, b % MODULUS);
    }
    b << 16 | a
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn dictionary_checksum_is_unchanged() {
        assert_eq!(adler32(DICTIONARY), 0xed93_c322, "batches wait in stores that were packed with it");
        assert!(u16::try_from(DICTIONARY.len()).is_ok());
        assert_eq!(u16::from_be_bytes(HEAD) % 31, 0);
        assert_eq!([adler32(b""), adler32(b"Wikipedia")], [1, 0x11e6_0398]);
        assert_eq!(adler32(&[0xff; 100_000]), 0x149a_302c);
    }

    #[test]
    fn batch_packed_by_another_zlib_unpacks() {
        // Python: c = zlib.compressobj(9, zlib.DEFLATED, 15, zdict=dictionary); c.compress(text) + c.flush()
        let packed = b"\x78\xf9\xed\x93\xc3\x22\x43\x91\x04\xcb\x19\xe1\x4b\xcc\xa6\x0a\x66\x5c\x00\xb6\xdf\x11\x38";
        assert_eq!(unpack(packed).unwrap(), "# v=1 epoch=1 seq=2\nmuster_host_uptime seconds=5 6\n");
        let gzip = {
            use std::io::Write as _;
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), Compression::best());
            encoder.write_all(b"plain").unwrap();
            encoder.finish().unwrap()
        };
        assert_eq!(unpack(&gzip).unwrap(), "plain");
        assert_eq!(unpack(b"xplain").unwrap(), "xplain", "0x78, and no head of a stream");
    }

    #[test]
    fn damaged_batch_is_refused() {
        let packed = pack("# v=1 epoch=1 seq=1\nm f=1 1\n");
        for length in 0..packed.len() {
            assert!(unpack(&packed[..length]).is_err() || length < 2, "{length}");
        }
        let longer = [&packed[..], &[0]].concat();
        assert!(unpack(&longer).is_err());
        let mut other = packed.clone();
        other[2] ^= 1;
        assert!(unpack(&other).unwrap_err().to_string().contains("dictionary ec93c322"), "another dictionary");
        let mut wrong = packed;
        *wrong.last_mut().unwrap() ^= 1;
        assert!(unpack(&wrong).unwrap_err().to_string().contains("checksum"));
    }

    #[test]
    fn unpacked_size_is_limited() {
        let bomb = pack(&" ".repeat(100 * UNPACKED_MAX_BYTES));
        assert!(bomb.len() < UNPACKED_MAX_BYTES);
        assert!(unpack(&bomb).unwrap_err().to_string().contains("more than"));
        let most = "x".repeat(UNPACKED_MAX_BYTES);
        assert_eq!(unpack(&pack(&most)).unwrap(), most);
    }

    proptest! {
        #[test]
        fn packed_batch_unpacks_to_the_same(text in "(muster_host_cpu busy_ratio=|[a-z]{1,3}|[0-9.]{1,9}|\n|.){0,400}") {
            prop_assert_eq!(unpack(&pack(&text)).unwrap(), text);
        }

        #[test]
        fn no_bytes_panic_the_unpacker(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = unpack(&bytes);
            let mut packed = HEAD.to_vec();
            packed.extend(adler32(DICTIONARY).to_be_bytes());
            packed.extend(bytes);
            let _ = unpack(&packed);
        }
    }
}
