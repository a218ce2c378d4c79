//! Parts of a date, of a time in seconds since 1970, in UTC.

/// The parts of a date.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DatePart {
    Minute,
    Hour,
    DayOfWeek,
    DayOfMonth,
    DayOfYear,
    DaysInMonth,
    Month,
    Year,
}

/// Largest time with a date, about 30,000 years from now.
const TIME_MAX_S: f64 = 1e12;

impl DatePart {
    /// The part with this name in queries.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "minute" => Self::Minute,
            "hour" => Self::Hour,
            "day_of_week" => Self::DayOfWeek,
            "day_of_month" => Self::DayOfMonth,
            "day_of_year" => Self::DayOfYear,
            "days_in_month" => Self::DaysInMonth,
            "month" => Self::Month,
            "year" => Self::Year,
            _ => return None,
        })
    }

    /// The part of a time; NaN if the time is NaN or out of range.
    pub(crate) fn of(self, seconds: f64) -> f64 {
        if seconds.is_nan() || seconds.abs() > TIME_MAX_S {
            return f64::NAN;
        }
        let seconds = seconds.trunc() as i64;
        let (days, of_day) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
        let (year, month, day) = civil(days);
        let part = match self {
            Self::Minute => of_day % 3600 / 60,
            Self::Hour => of_day / 3600,
            // 1 January 1970 was a Thursday.
            Self::DayOfWeek => (days + 4).rem_euclid(7),
            Self::DayOfMonth => day,
            Self::DayOfYear => days - day_number(year, 1, 1) + 1,
            Self::DaysInMonth => {
                let next = if month == 12 { day_number(year + 1, 1, 1) } else { day_number(year, month + 1, 1) };
                next - day_number(year, month, 1)
            }
            Self::Month => month,
            Self::Year => year,
        };
        part as f64
    }
}

/// Year, month and day of a day number since 1970, in the Gregorian calendar. Years are counted from March, so that the
/// leap day is the last day.
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let (era, of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let day_of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// The day number since 1970 of a date: the inverse of [`civil`].
fn day_number(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let march_month = (month + 9) % 12;
    let day_of_year = (153 * march_month + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_and_dates_are_inverse() {
        for days in (-800_000..800_000).step_by(13) {
            let (year, month, day) = civil(days);
            assert_eq!(day_number(year, month, day), days);
        }
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(11_016), (2000, 2, 29));
    }

    #[test]
    fn parts_are_those_of_the_date() {
        // 2024-02-29 12:34:56, a Thursday.
        let at = 1_709_210_096.0;
        for (part, value) in [
            ("minute", 34.0),
            ("hour", 12.0),
            ("day_of_week", 4.0),
            ("day_of_month", 29.0),
            ("day_of_year", 60.0),
            ("days_in_month", 29.0),
            ("month", 2.0),
            ("year", 2024.0),
        ] {
            assert_eq!(DatePart::named(part).unwrap().of(at), value, "{part}");
        }
        assert!(DatePart::Year.of(f64::NAN).is_nan() && DatePart::Year.of(f64::INFINITY).is_nan());
    }
}
