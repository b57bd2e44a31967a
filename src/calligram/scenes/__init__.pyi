from calligram.scenes import drawing as drawing
from calligram.scenes.generate import generate_scenes as generate_scenes
from calligram.scenes.people import Appearance as Appearance
from calligram.scenes.world import PlacedFigure as PlacedFigure
from calligram.scenes.world import Scene as Scene
