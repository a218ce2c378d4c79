//! Golomb-Rice codes: columns of some hundred integers of similar size, in hardly more bits than they are worth. Pure.
//!
//! A number is divided by a power of two; the quotient is a run of zeros and a one, the rest takes as many bits as the power
//! says. `pco` comes closer to what numbers are worth, but takes fifty bytes to describe a column, which only pays for more of
//! them, and longer to decode it.
//!
//! What is coded are distances to the least number or to the median, whichever is shorter, without their common divisor.

use super::numbers::{self, DecodeError};

/// All numbers are equal.
const EQUAL: u8 = 0;
/// Distances to the least number.
const ABOVE: u8 = 1;
/// Distances to the median, of which every second code is negative.
const AROUND: u8 = 2;
/// A run of this many zeros is followed by a whole number.
const ESCAPE: u32 = 24;
/// The largest power: with the longest run and seven bits before, a code has at most 64 bits.
const POWER_MAX: u32 = 32;

/// Appends a column.
pub(crate) fn put(out: &mut Vec<u8>, values: &[i64]) {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let (Some(least), Some(most)) = (sorted.first().copied(), sorted.last().copied()) else { return };
    if least == most {
        out.push(EQUAL);
        numbers::put_signed(out, least);
        return;
    }
    let divisor = match most.checked_sub(least) {
        Some(_) => values.iter().fold(0, |divisor, value| numbers::gcd(divisor, (value - least).unsigned_abs())),
        None => 1,
    };
    let median = sorted.get(sorted.len() / 2).copied().unwrap_or(least);
    let above = |value: &i64| value.wrapping_sub(least).cast_unsigned() / divisor;
    let around = |value: &i64| {
        let distance = i64::try_from(divisor).map_or(0, |divisor| value.wrapping_sub(median) / divisor);
        numbers::zigzag(distance)
    };
    let choices: [(u8, i64, Vec<u64>); 2] =
        [(ABOVE, least, values.iter().map(above).collect()), (AROUND, median, values.iter().map(around).collect())];
    let cheapest =
        choices.into_iter().map(|(kind, base, codes)| (power(&codes), kind, base, codes)).min_by_key(|one| one.0.0);
    let Some(((_, power), kind, base, codes)) = cheapest else { return };
    out.push(kind);
    numbers::put_signed(out, base);
    numbers::put_varint(out, divisor);
    numbers::put_varint(out, u64::from(power));
    let mut bits = BitWriter { out, pending: 0, count: 0 };
    codes.into_iter().for_each(|code| bits.put(code, power));
    bits.finish();
}

/// The number of bits with the best power, and that power.
fn power(codes: &[u64]) -> (u64, u32) {
    let cost = |power: u32| {
        let code = |code: &u64| match code >> power {
            run if run < u64::from(ESCAPE) => run + 1 + u64::from(power),
            _ => u64::from(ESCAPE) + 64,
        };
        codes.iter().map(code).sum::<u64>()
    };
    (0..=POWER_MAX).map(|power| (cost(power), power)).min().unwrap_or_default()
}

/// Decodes a column of this many numbers.
pub(crate) fn take(input: &mut &[u8], count: usize) -> Result<Vec<i64>, DecodeError> {
    if count == 0 {
        return Ok(Vec::new());
    }
    let kind = numbers::take_byte(input)?;
    let base = numbers::take_signed(input)?;
    if kind == EQUAL {
        return Ok(vec![base; count]);
    }
    let divisor = numbers::take_varint(input)?.cast_signed();
    let power = u32::try_from(numbers::take_varint(input)?).ok().filter(|power| *power <= POWER_MAX);
    let (ABOVE | AROUND, Some(power)) = (kind, power) else { return Err(UNKNOWN) };
    let mut bits = BitReader { bytes: input, at: 0 };
    let mut next = || {
        let code = bits.take(power);
        let distance = if kind == ABOVE { code.cast_signed() } else { numbers::unzigzag(code) };
        base.wrapping_add(distance.wrapping_mul(divisor))
    };
    let values = (0..count).map(|_| next()).collect();
    *input = input.get(bits.at.div_ceil(8)..).ok_or(ENDS)?;
    Ok(values)
}

const ENDS: DecodeError = DecodeError::Content("a column that ends early");
const UNKNOWN: DecodeError = DecodeError::Content("a coded column of no known kind");

/// Writes bits, the lowest first.
struct BitWriter<'a> {
    out: &'a mut Vec<u8>,
    pending: u64,
    count: u32,
}

impl BitWriter<'_> {
    fn put(&mut self, code: u64, power: u32) {
        let run = code >> power;
        if run < u64::from(ESCAPE) {
            self.bits(1 << run, u32::try_from(run).unwrap_or(0) + 1);
            self.bits(code & ((1 << power) - 1), power);
        } else {
            self.bits(0, ESCAPE);
            self.bits(code & u64::from(u32::MAX), 32);
            self.bits(code >> 32, 32);
        }
    }

    /// Writes at most 32 bits.
    fn bits(&mut self, bits: u64, count: u32) {
        self.pending |= bits << self.count;
        self.count += count;
        while self.count >= 8 {
            #[expect(clippy::cast_possible_truncation, reason = "its low eight bits are meant")]
            self.out.push(self.pending as u8);
            self.pending >>= 8;
            self.count -= 8;
        }
    }

    fn finish(mut self) {
        if self.count > 0 {
            self.bits(0, 8 - self.count);
        }
    }
}

/// Reads bits; behind the last there are zeros.
struct BitReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl BitReader<'_> {
    fn take(&mut self, power: u32) -> u64 {
        // At least 57 bits, as many as the longest code with a run has.
        let next = self.load();
        let run = next.trailing_zeros();
        if run < ESCAPE {
            self.at += (run + 1 + power) as usize;
            return u64::from(run) << power | next >> (run + 1) & ((1 << power) - 1);
        }
        self.at += ESCAPE as usize;
        let low = self.load() & u64::from(u32::MAX);
        self.at += 32;
        let high = self.load() & u64::from(u32::MAX);
        self.at += 32;
        high << 32 | low
    }

    /// The next bits.
    fn load(&self) -> u64 {
        let rest = self.bytes.get(self.at / 8..).unwrap_or_default();
        let word = rest.first_chunk::<8>().copied().unwrap_or_else(|| {
            let mut word = [0; 8];
            word.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
            word
        });
        u64::from_le_bytes(word) >> (self.at % 8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn packed(values: &[i64]) -> usize {
        let mut bytes = Vec::new();
        put(&mut bytes, values);
        let length = bytes.len();
        // What follows is left.
        bytes.extend([0xff; 9]);
        let mut rest = &bytes[..];
        assert_eq!(take(&mut rest, values.len()).unwrap(), values);
        assert_eq!(rest, [0xff; 9]);
        bytes.truncate(length);
        for cut in 0..length {
            assert!(take(&mut &bytes[..cut], values.len()).is_err(), "{cut} of {length}");
        }
        length
    }

    #[test]
    fn usual_columns_are_small() {
        let column = |value: fn(i64) -> i64| (0..288).map(value).collect::<Vec<_>>();
        for (what, values, bytes_max) in [
            ("equal", column(|_| -7), 2),
            ("zeros and a few", column(|i| i64::from(i % 50 == 0)), 45),
            ("a byte each", column(|i| i * i * 7_919 % 251), 330),
            ("around a million", column(|i| 1_000_000 + i * i * 7_919 % 251 - 128), 330),
            ("multiples", column(|i| (i * i * 7_919 % 251) * 4_096), 330),
            ("one far away", column(|i| if i == 3 { i64::MAX } else { i % 3 }), 140),
        ] {
            let bytes = packed(&values);
            assert!(bytes <= bytes_max, "{what}: {bytes}");
        }
    }

    #[test]
    fn extremes_come_back() {
        for values in [
            vec![i64::MIN, i64::MAX],
            vec![i64::MIN, 0, i64::MAX, -1, 1],
            vec![0, i64::MAX],
            vec![i64::MIN; 3],
            [1 << 40, 0, 1].repeat(30),
        ] {
            packed(&values);
        }
    }

    proptest! {
        #[test]
        fn columns_come_back(
            values in proptest::collection::vec(any::<i64>(), 1..50),
            small in proptest::collection::vec(-999..999_i64, 1..400),
            factor in 1..1_000_000_i64,
        ) {
            packed(&values);
            packed(&small);
            packed(&small.iter().map(|value| value * factor).collect::<Vec<_>>());
        }

        #[test]
        fn no_bytes_panic_the_decoder(bytes in proptest::collection::vec(any::<u8>(), 0..100), count in 0..400_usize) {
            let _ = take(&mut &bytes[..], count);
        }
    }
}
