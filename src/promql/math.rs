//! Functions of one number: `abs`, `clamp` and their kind.

/// The functions.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MathFunction {
    Plain(fn(f64) -> f64),
    Clamp,
    ClampMin,
    ClampMax,
    Round,
}

impl MathFunction {
    /// The function with this name in queries.
    pub(crate) fn named(name: &str) -> Option<Self> {
        let plain: fn(f64) -> f64 = match name {
            "abs" => f64::abs,
            "floor" => f64::floor,
            "ceil" => f64::ceil,
            "exp" => f64::exp,
            "ln" => f64::ln,
            "log2" => f64::log2,
            "log10" => f64::log10,
            "sqrt" => f64::sqrt,
            "sgn" => sign,
            "acos" => f64::acos,
            "acosh" => f64::acosh,
            "asin" => f64::asin,
            "asinh" => f64::asinh,
            "atan" => f64::atan,
            "atanh" => f64::atanh,
            "cos" => f64::cos,
            "cosh" => f64::cosh,
            "sin" => f64::sin,
            "sinh" => f64::sinh,
            "tan" => f64::tan,
            "tanh" => f64::tanh,
            "deg" => f64::to_degrees,
            "rad" => f64::to_radians,
            "clamp" => return Some(Self::Clamp),
            "clamp_min" => return Some(Self::ClampMin),
            "clamp_max" => return Some(Self::ClampMax),
            "round" => return Some(Self::Round),
            _ => return None,
        };
        Some(Self::Plain(plain))
    }

    /// Smallest and largest number of arguments beside the vector.
    pub(crate) fn parameters(self) -> (usize, usize) {
        match self {
            Self::Plain(_) => (0, 0),
            Self::Clamp => (2, 2),
            Self::ClampMin | Self::ClampMax => (1, 1),
            Self::Round => (0, 1),
        }
    }

    /// The result, if there is one.
    pub(crate) fn apply(self, value: f64, parameters: &[f64]) -> Option<f64> {
        Some(match (self, parameters) {
            (Self::Plain(function), _) => function(value),
            (Self::Clamp, [least, most]) => {
                if most < least {
                    return None;
                }
                maximum(*least, minimum(*most, value))
            }
            (Self::ClampMin, [least]) => maximum(*least, value),
            (Self::ClampMax, [most]) => minimum(*most, value),
            (Self::Round, [nearest]) => round(value, *nearest),
            (Self::Round, _) => round(value, 1.0),
            (Self::Clamp | Self::ClampMin | Self::ClampMax, _) => return None,
        })
    }
}

/// Rounds half up. Multiplies by the inverse, which is more exact for steps such as 0.1.
fn round(value: f64, nearest: f64) -> f64 {
    let inverse = 1.0 / nearest;
    (value * inverse + 0.5).floor() / inverse
}

fn sign(value: f64) -> f64 {
    if value > 0.0 {
        1.0
    } else if value < 0.0 {
        -1.0
    } else {
        value
    }
}

/// The larger value. NaN wins over all values except infinity.
fn maximum(a: f64, b: f64) -> f64 {
    if a == f64::INFINITY || b == f64::INFINITY {
        f64::INFINITY
    } else if a.is_nan() || b.is_nan() {
        f64::NAN
    } else {
        a.max(b)
    }
}

/// The smaller value. NaN wins over all values except infinity.
fn minimum(a: f64, b: f64) -> f64 {
    -maximum(-a, -b)
}
