//! `/sys/class/dmi/id/*` (Linux 2.6.24): the firmware's names for the machine. They tell which
//! cloud provider runs a virtual machine.

use crate::{Kernel, Result};

/// Four files of `/sys/class/dmi/id` (`CONFIG_DMIID`); everybody may read them. A field is `None`
/// where its file does not exist: not every machine has DMI tables.
///
/// Sample lines: `Amazon EC2`; `Google Compute Engine`; `7783-7084-3265-9085-8269-3286-77`;
/// `4.11.amazon`. Source: drivers/firmware/dmi-id.c.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the kernel's names")]
pub struct Dmi {
    pub sys_vendor: Option<String>,
    pub product_name: Option<String>,
    pub bios_version: Option<String>,
    pub chassis_asset_tag: Option<String>,
}

impl Dmi {
    /// Reads the four files.
    pub fn read(kernel: &Kernel) -> Result<Self> {
        let field = |name: &str| -> Result<Option<String>> {
            let text = kernel.sys.read_optional(format!("class/dmi/id/{name}"))?;
            Ok(text.map(|text| text.trim().to_owned()))
        };
        Ok(Dmi {
            sys_vendor: field("sys_vendor")?,
            product_name: field("product_name")?,
            bios_version: field("bios_version")?,
            chassis_asset_tag: field("chassis_asset_tag")?,
        })
    }
}
