"""Units of GRIB2 parameters by the abbreviations that wgrib2 writes into an index.

Belongs here: what NOAA's models publish, as WMO code table 4.2 and NCEP's local tables define it. Does not belong here:
codes and flags, which have no unit; what an index says (`grib_index.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

_NAMES: Mapping[str, str] = {
    "K": """
        4LFTX APTMP BRTMP DPT EPOT ICETMP LFTX PLI POT SBT113 SBT114 SBT123 SBT124 SBTA1610 SBTA1611 SBTA1612 SBTA1613
        SBTA1614 SBTA1615 SBTA1616 SBTA167 SBTA168 SBTA169 TMAX TMIN TMP TSOIL VTMP WETBT WTMP""",
    "%": """
        ALBDO CDCON CPOFP HCDC ICIP LCDC MAXRH MCDC MINRH MSTAV MXSALB RH RHPW SNOWC TCDC TSTM VEG VEGMAX VEGMIN""",
    "1": """
        AOTK CD ESP FICE FLDCP HINDEX ICEC LAI LAND LTNG RI RIME SOILL SOILW WILT""",
    "Pa": "MSLET MSLMA PLPL PRES PRMSL",
    "Pa/s": "TSLSA VVEL",
    "gpm": "5WAVH HGT",
    "m": """
        ASNOW CEIL DIST HAIL HPBL HTSGW ICAHT ICETK LAYTH MIXHT RETOP SFCR SNOD SNOWLVL SWELL VIS WVHGT""",
    "m/s": """
        DZDT FRICV GUST ICEG MAXDVV MAXUVV MAXUW MAXVW TRWSPD UGRD USTM VGRD VSTM WIND""",
    "m^2/s": "VRATE",
    "m^2/s^2": "EFHL HLCY MNTSF MNUPHL MXUPHL UPHL",
    "degree": "CANGLE DIRPW SWDIR TRWDIR WDIR WVDIR",
    "s": "PERPW SUNSD SWPER WVPER",
    "1/s": "ABSV RELV VUCSH VVCSH VWSH",
    "K*m^2/kg/s": "PVORT",
    "J/kg": "CAPE CIN CWORK TKE",
    "kg/kg": "CLMR CLWMR GRLE ICMR O3MR RWMR SNMR SPFH",
    "kg/m^2": """
        ACPCP APCP BGRUN CNWAT COLMD CWAT FICEAC FROZR FRZR MAXVIG NCPCP PWAT SSRUN TCOLG TCOLI TCOLW VIL WATR WEASD""",
    "kg/m^2/s": "CPRAT PRATE",
    "kg/m^3": "MASSDEN",
    "W/m^2": """
        CDUVB CFNLF CFNSF CSDLF CSDSF CSULF CSUSF DLWRF DSWRF DUVB GFLUX LHTFL PEVPR SHTFL SNOHF ULWRF USWRF VBDSF
        VDDSF""",
    "N/m^2": "U-GWD UFLX V-GWD VFLX",
    "dB": "MAXREF REFC REFD",
    "DU": "TOZNE",
    "1/m^2/s": "LTNGSD",
}
"""Names by their unit, as wgrib2's table of NCEP's parameters has it; a share or a number without unit is of `1`."""

UNITS: Mapping[str, str] = {name: unit for unit, names in _NAMES.items() for name in names.split()}
"""Unit by name."""
